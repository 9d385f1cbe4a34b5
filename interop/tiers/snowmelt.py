"""Runs the snowmelt binary in a separate directory, within limits."""
import os
import resource
import shutil
import signal
import subprocess
import tempfile
import threading

from .report import Failed

ADDRESS_SPACE = 8 << 30     # bytes; only protects the machine from a runaway process
PANIC_EXIT = 101            # exit status of a Rust panic


class Result:
    """The result of a command: exit status (negative: killed by that signal), stdout, stderr, peak RSS."""

    def __init__(self, args, status, out, err, rss_bytes, timed_out):
        self.args, self.status, self.out, self.err = args, status, out, err
        self.rss_bytes, self.timed_out = rss_bytes, timed_out

    def crashed(self):
        """The reason why this is a crash, whatever the status, or None."""
        if self.timed_out:
            return 'did not end in time'
        if self.status < 0:
            return 'killed by signal %d (%s)' % (-self.status, signal.Signals(-self.status).name)
        if self.status == PANIC_EXIT or b'panicked at' in self.err:
            return 'panicked: %s' % self.text()
        return None

    def text(self):
        return self.err.decode('utf-8', 'replace').strip()

    def __str__(self):
        return '`%s` gave %s%s: %s' % (' '.join(self.args), self.status, ' (timed out)' if self.timed_out else '',
                                       self.text())


class Snowmelt:
    """A home directory with pools: everything that the binary finds by default is inside `top`."""

    def __init__(self, binary, top):
        self.binary, self.top = binary, top
        os.makedirs(top, exist_ok=True)
        run = os.path.join(top, 'run')
        os.makedirs(run, mode=0o700, exist_ok=True)
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(('SNOWMELT_', 'XDG_'))}
        # The last one is for root's list of pools, which all other runs would share.
        self.env.update(HOME=top, XDG_DATA_HOME=os.path.join(top, 'data'), XDG_RUNTIME_DIR=run,
                        XDG_CONFIG_HOME=os.path.join(top, 'config'))
        # Otherwise root's `zfs create` would mount on directories of this machine.
        self.env.update(TZ='UTC', LC_ALL='C.UTF-8', SNOWMELT_AUTOMOUNT='off')

    def start(self, args, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE):
        child = subprocess.Popen([self.binary, *args], stdin=stdin, stdout=stdout, stderr=stderr, env=self.env,
                                 cwd=self.top)
        try:
            resource.prlimit(child.pid, resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
        except ProcessLookupError:
            pass        # it has ended already
        return child

    def run(self, *args, stdin=None, stdin_bytes=None, limit=None, stdout=None, timeout=300):
        """Runs to the end. `stdin` is a path, of which at most `limit` bytes are passed. `stdout` is a path to write to
        (otherwise the output is in the result)."""
        out = open(stdout, 'wb') if stdout else tempfile.TemporaryFile()
        err = tempfile.TemporaryFile()
        source, feed = subprocess.DEVNULL, None
        if stdin is not None and limit is None:
            source = open(stdin, 'rb')
        elif stdin is not None:
            with open(stdin, 'rb') as f:
                feed = f.read(limit)
        elif stdin_bytes is not None:
            feed = stdin_bytes
        if feed is not None:
            source = subprocess.PIPE
        child = self.start(args, source, out, err)
        if feed is not None:
            threading.Thread(target=pour, args=(child.stdin, feed), daemon=True).start()
        elif source is not subprocess.DEVNULL:
            source.close()
        timed_out = threading.Event()
        timer = threading.Timer(timeout, lambda: (timed_out.set(), child.kill()))
        timer.start()
        _, status, usage = os.wait4(child.pid, 0)
        timer.cancel()
        child.returncode = os.waitstatus_to_exitcode(status)
        err.seek(0)
        got = b''
        if not stdout:
            out.seek(0)
            got = out.read()
        out.close()
        return Result(args, child.returncode, got, err.read(), usage.ru_maxrss * 1024, timed_out.is_set())

    def ok(self, *args, **kw):
        """Runs a command that must succeed."""
        result = self.run(*args, **kw)
        if result.status != 0 or result.timed_out:
            raise Failed(str(result))
        return result

    def create_pool(self, name):
        self.ok('pool', 'create', name)

    def receive(self, dataset, path, *options, limit=None):
        return self.ok('receive', *options, dataset, stdin=path, limit=limit)

    def send(self, path, *args):
        return self.ok('send', *args, stdout=path)

    def table(self, *args):
        """The rows of a `-H` listing."""
        text = self.ok(*args).out.decode('utf-8', 'surrogateescape')
        return [line.split('\t') for line in text.split('\n') if line]

    def snapshots(self, dataset):
        """name -> (guid, creation) of every snapshot of a dataset and those below it, in order."""
        rows = self.table('list', '-Hp', '-r', '-t', 'snapshot', '-o', 'name,guid,creation', dataset)
        return {name: (guid, int(creation)) for name, guid, creation in rows}

    def state(self, pool):
        """The full listing of a pool, to check that nothing has changed. Space is left out: a refused receive may leave
        blocks that are freed later."""
        return self.ok('list', '-Hp', '-r', '-t', 'all', '-o', 'name,guid,creation,createtxg,origin,userrefs', pool).out

    def token(self, dataset):
        """The resume token of a partly received dataset, or None."""
        rows = self.run('get', '-Hp', '-o', 'value', 'receive_resume_token', dataset)
        token = rows.out.decode().strip()
        return token if rows.status == 0 and token not in ('', '-') else None

    def checked(self, pool):
        """The reason why `check` does not pass, or None."""
        result = self.run('check', pool, timeout=600)
        return None if result.status == 0 else '%s\n%s' % (result, result.out.decode('utf-8', 'replace'))

    def close(self):
        shutil.rmtree(self.top, ignore_errors=True)


def pour(pipe, data):
    try:
        pipe.write(data)
        pipe.close()
    except BrokenPipeError:
        pass
