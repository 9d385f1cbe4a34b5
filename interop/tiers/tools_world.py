"""The environment of the tools: two machines that do not know each other's pools, with an sshd between them."""
import getpass
import itertools
import os
import shutil
import socket
import subprocess
import sys
import time

from .report import Failed
from .snowmelt import Snowmelt
from .vm import VM

sys.path.insert(0, VM)
from mutate import Mutator      # noqa: E402

TIMEOUT = 120       # maximum seconds of a tool
OPS = 12


class Ended:
    """The result of a tool."""

    def __init__(self, words, status, out, err):
        self.words, self.status, self.out, self.err = words, status, out, err

    def __str__(self):
        return '`%s` gave %d:\n%s\n%s' % (' '.join(self.words), self.status, self.out.strip(), self.err.strip())


class Machine(Snowmelt):
    """A home directory with pools, with `zfs` and `zpool` first in the PATH."""

    def __init__(self, binary, top):
        super().__init__(binary, top)
        self.bin = os.path.join(top, 'bin')
        self.ended = 0
        self.ok('shims', self.bin)
        self.env.update(PATH='%s:%s' % (self.bin, os.environ['PATH']), USER=getpass.getuser(), TZ='UTC')

    def tool(self, words, timeout=TIMEOUT, **env):
        """Runs an unmodified program with our commands in its PATH. `path` in the environment puts a directory before
        them."""
        path = env.pop('path', None)
        full = dict(self.env, **env)
        if path:
            full['PATH'] = '%s:%s' % (path, full['PATH'])
        child = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                 env=full,
                                 cwd=self.top, text=True, errors='surrogateescape', start_new_session=True)
        try:
            out, err = child.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, 9)
            out, err = child.communicate()
            raise Failed('%s\ndid not end in time' % Ended(words, -9, out, err))
        self.ended = time.time()
        return Ended(words, child.returncode, out, err)

    def next_second(self):
        """Waits until the second after the last tool, because tools name their snapshots by the second."""
        while int(time.time()) <= int(self.ended):
            time.sleep(0.02)

    def tool_ok(self, words, **kw):
        ended = self.tool(words, **kw)
        if ended.status != 0:
            raise Failed(ended)
        return ended

    def zfs(self, *words):
        """Runs `zfs`. Returns its output."""
        return self.tool_ok(['zfs', *words]).out

    def get(self, name, dataset):
        return self.zfs('get', '-Hp', '-o', 'value', name, dataset).strip()

    def of(self, dataset):
        """The snapshots of a dataset, in order: name after the @ -> guid."""
        out = self.zfs('list', '-Hp', '-d', '1', '-t', 'snapshot', '-o', 'name,guid', dataset)
        rows = [line.split('\t') for line in out.split('\n') if line]
        return {name.split('@', 1)[1]: guid for name, guid in rows}

    def manifest(self, snapshot):
        return self.ok('manifest', snapshot).out


# Addresses of the loopback: one for each sshd, because syncoid names its control sockets after them.
ADDRESSES = itertools.count(2)


class World:
    """Machine `here` has the pool `pond`, machine `there` the pool `lake`; `here` has a second pool `well`."""

    def __init__(self, binary, top):
        self.top = top
        os.makedirs(top)
        self.here, self.there = Machine(binary, top + '/here'), Machine(binary, top + '/there')
        self.here.create_pool('pond')
        self.here.create_pool('well')
        self.there.create_pool('lake')
        self.seed = 0
        self.sshd = None

    def close(self):
        if self.sshd:
            self.sshd.terminate()
            self.sshd.wait()
        shutil.rmtree(self.top, ignore_errors=True)

    def change(self, dataset, snapshot, ops=OPS, replica=False):
        """Creates the dataset if needed, changes a tree at random, and imports it as a snapshot. A replica is changed
        only by force."""
        self.seed += 1
        tree = '%s/trees/%s' % (self.top, dataset.replace('/', '_'))
        os.makedirs(tree, exist_ok=True)
        Mutator(tree, self.seed).run(ops)
        self.here.ok('import', *['-F'] * replica, tree, '%s@%s' % (dataset, snapshot))

    def same(self, source, target, least=1):
        """Fails unless the target has at least this many of the source's snapshots, with equal guids and content. Every
        snapshot with the same name must be equal."""
        (a, machine_a), (b, machine_b) = self.place(source), self.place(target)
        ours, theirs = machine_a.of(a), machine_b.of(b)
        common = [name for name in ours if name in theirs]
        if len(common) < least:
            raise Failed('%s and %s have %s in common, not %d\n%s\n%s' % (source, target, common, least, ours, theirs))
        if list(ours)[-1] != list(theirs)[-1]:
            raise Failed('%s ends with %s and %s with %s' % (source, list(ours)[-1], target, list(theirs)[-1]))
        for name in common:
            if ours[name] != theirs[name]:
                raise Failed('guids of %s: %s in %s, %s in %s' % (name, ours[name], source, theirs[name], target))
            if machine_a.manifest('%s@%s' % (a, name)) != machine_b.manifest('%s@%s' % (b, name)):
                raise Failed('contents of %s in %s and %s differ' % (name, source, target))

    def place(self, dataset):
        return dataset, self.there if dataset.startswith('lake') else self.here

    def checked(self):
        """Fails unless all pools pass `check`."""
        for machine, pool in ((self.here, 'pond'), (self.here, 'well'), (self.there, 'lake')):
            why = machine.checked(pool)
            if why:
                raise Failed('%s: %s' % (pool, why))

    # ---- ssh -----------------------------------------------------------------------------

    def start_sshd(self):
        """An sshd on the loopback, `address`, that accepts only our key and has the commands of `there` in its PATH."""
        d = self.top + '/ssh'
        os.makedirs(d, mode=0o700)
        for key in ('host', 'user'):
            subprocess.run(['ssh-keygen', '-q', '-t', 'ed25519', '-N', '', '-f', '%s/%s' % (d, key)], check=True)
        shutil.copy(d + '/user.pub', d + '/authorized')
        host = '127.0.0.%d' % next(ADDRESSES)
        self.address = '%s@%s' % (getpass.getuser(), host)
        with socket.socket() as s:
            s.bind((host, 0))
            self.port = s.getsockname()[1]
        env = self.there.env
        passed = {k: env[k] for k in ('PATH', 'HOME', 'XDG_CONFIG_HOME', 'XDG_DATA_HOME', 'XDG_RUNTIME_DIR',
                                      'SNOWMELT_AUTOMOUNT')}
        with open(d + '/config', 'w') as f:
            f.write(
                'Port %d\nListenAddress %s\nHostKey %s/host\nAuthorizedKeysFile %s/authorized\nStrictModes no\nUsePAM no\n'
                    'PidFile none\nPermitRootLogin yes\nPasswordAuthentication no\nMaxStartups 100\nMaxSessions 100\nSetEnv %s\n'
                    % (self.port, host, d, d, ' '.join('%s=%s' % pair for pair in passed.items())))
        if os.geteuid() == 0:
            os.makedirs('/run/sshd', mode=0o755, exist_ok=True)
        with open(d + '/client', 'w') as f:
            f.write('Host there\nHostName %s\nPort %d\nUser %s\nIdentityFile %s/user\nIdentitiesOnly yes\n'
                    'StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nLogLevel ERROR\n'
                    % (host, self.port, getpass.getuser(), d))
        self.ssh_config = d + '/client'
        with open(d + '/log', 'w') as log:
            self.sshd = subprocess.Popen([shutil.which('sshd') or '/usr/sbin/sshd', '-f', d + '/config', '-D', '-e'],
                                         stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + 20
        while True:
            ended = self.here.tool(['ssh', '-F', self.ssh_config, 'there', 'zpool list -Ho name'])
            if ended.status == 0 and ended.out == 'lake\n':
                return
            if time.monotonic() > deadline:
                with open(d + '/log') as f:
                    raise Failed('sshd does not answer: %s\n%s' % (ended, f.read()))
            time.sleep(0.1)

    # ---- streams that break off ------------------------------------------------------------

    def cutting(self, limit):
        """A directory with a `zfs` whose `send` ends after `limit` bytes. Our link comes after it in the PATH."""
        d = '%s/cut-%d' % (self.top, limit)
        os.makedirs(d, exist_ok=True)
        with open(d + '/zfs', 'w') as f:
            f.write(
                '#!/bin/sh\ncase "$*" in\n  send*" -n"*) ;;\n  send*) exec %s/zfs "$@" | head -c %d; exit 0 ;;\nesac\nexec %s/zfs "$@"\n'
                    % (self.here.bin, limit, self.here.bin))
        os.chmod(d + '/zfs', 0o755)
        return d
