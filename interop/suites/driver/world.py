"""The environment of a suite: a separate mount namespace, with its own pools, configuration, /tmp, /etc and /dev."""
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ROOT = os.path.dirname(os.path.dirname(HERE))
TARGET = os.environ.get('CARGO_TARGET_DIR', os.path.join(ROOT, 'target'))
BINARY = os.path.abspath(os.environ.get('SNOWMELT', os.path.join(TARGET, 'release', 'snowmelt')))
SUITES = os.path.abspath(os.environ.get('SNOWMELT_SUITES', os.path.join(TARGET, 'interop-suites')))

CAP_SYS_TIME = 1 << 25


def enter(script, words):
    """Starts the script again in a separate mount namespace and network. The right to set the clock is dropped for
    good."""
    if os.geteuid() != 0:
        sys.exit('the suites need root')
    if not os.access(BINARY, os.X_OK):
        sys.exit('%s is not there: cargo build --release, or set SNOWMELT' % BINARY)
    outside = os.readlink('/proc/self/ns/mnt')
    words = ['setpriv', '--bounding-set', '-sys_time', '--inh-caps', '-sys_time', 'unshare', '-mn', '--propagation',
             'slave',
             sys.executable, script, '--inside', outside, *words]
    os.execvp(words[0], words)


def require_private(outside):
    """Fails if others would see the mounts, or if the clock could be set."""
    with open('/proc/self/status') as status:
        sets = {line.split(':')[0]: int(line.split()[1], 16) for line in status if line.startswith('Cap')}
    if any(sets[name] & CAP_SYS_TIME for name in ('CapBnd', 'CapPrm', 'CapEff')):
        sys.exit('refused: the clock could be set from here')
    if os.readlink('/proc/self/ns/mnt') == outside:
        sys.exit('refused: this is not a mount namespace of its own')


# Directories with an overlay of the current world, in the order of mounting.
OVERLAYS = []


def overlay(directory, scratch):
    # New layers each time: an earlier run in the same scratch directory leaves its own.
    os.makedirs(os.path.join(scratch, 'overlay'), exist_ok=True)
    layers = tempfile.mkdtemp(prefix=directory.strip('/').replace('/', '_') + '-', dir=os.path.join(scratch, 'overlay'))
    upper, work = os.path.join(layers, 'upper'), os.path.join(layers, 'work')
    os.makedirs(upper)
    os.makedirs(work)
    mount('-t', 'overlay', 'overlay', '-o', 'lowerdir=%s,upperdir=%s,workdir=%s' % (directory, upper, work), directory)
    OVERLAYS.append(directory)


def remove_overlays():
    """The next world makes its own. An overlay is not usable when its layers are deleted."""
    while OVERLAYS:
        subprocess.run(['umount', '-l', OVERLAYS.pop()], check=False)


def mount(*words):
    subprocess.run(['mount', *words], check=True)


def others():
    """The other processes of this mount namespace that still run."""
    own, found = os.readlink('/proc/self/ns/mnt'), []
    for name in filter(str.isdigit, os.listdir('/proc')):
        try:
            with open('/proc/%s/stat' % name) as stat:
                state = stat.read().rsplit(')', 1)[1].split()[0]
            if state not in 'ZX' and int(name) != os.getpid() and os.readlink('/proc/%s/ns/mnt' % name) == own:
                found.append(int(name))
        except OSError:
            continue
    return found


def own_loopback():
    """Starts the loopback interface of this private network, because one of the suites runs an sshd on its port."""
    subprocess.run(['ip', 'link', 'set', 'lo', 'up'], check=True)


class World:
    """Pools of one suite. `env` is the environment of its programs."""

    def __init__(self, suite, scratch):
        self.suite = suite
        self.top = os.path.join(scratch, suite) if scratch else tempfile.mkdtemp(
            prefix='snowmelt-suite-', dir='/var/tmp')
        os.makedirs(self.top, exist_ok=True)
        os.chmod(self.top, 0o755)
        self.keep = bool(scratch)
        self.logs = os.path.join(self.top, 'logs')
        self.suites = SUITES
        self.binary = BINARY

    def path(self, *names):
        path = os.path.join(self.top, *names)
        os.makedirs(path, exist_ok=True)
        return path

    def __enter__(self):
        overlay('/usr/sbin', self.top)
        # The same links as in the package.
        for name in ('mount.zfs', 'mount.snowmelt', 'mount.fuse.snowmelt'):
            helper = os.path.join('/usr/sbin', name)
            if os.path.lexists(helper):
                os.unlink(helper)
            os.symlink(self.binary, helper)
        overlay('/etc', self.top)
        shutil.rmtree('/etc/snowmelt', ignore_errors=True)
        os.makedirs('/etc/snowmelt')
        self.bin = self.path('bin')
        os.makedirs(self.logs, exist_ok=True)
        self.env = dict(os.environ, PATH='%s:%s' % (self.bin, os.environ['PATH']), LC_ALL='C')
        self.env.pop('SNOWMELT_POOLS', None)
        self.env.pop('TMPDIR', None)
        for variable, name in (('XDG_DATA_HOME', 'data'), ('XDG_CONFIG_HOME', 'config'), ('XDG_RUNTIME_DIR', 'run'),
                               ('XDG_CACHE_HOME', 'cache'), ('XDG_STATE_HOME', 'state')):
            self.env[variable] = self.path(name)
        temporary = self.path('tmp')
        os.chmod(temporary, 0o1777)
        mount('--bind', temporary, '/tmp')
        self.run([self.binary, 'shims', self.bin], check=True)
        return self

    def __exit__(self, *_):
        self.clear()
        subprocess.run(['umount', '-l', '/tmp'], check=False)
        remove_overlays()
        if not self.keep:
            shutil.rmtree(self.top, ignore_errors=True)

    def devices(self):
        """A /dev in which files can be created and removed."""
        kept = {name: self.path('dev', name) for name in ('pts', 'shm')}
        for name, place in kept.items():
            mount('--bind', '/dev/%s' % name, place)
        overlay('/dev', self.top)
        for name, place in kept.items():
            os.makedirs('/dev/%s' % name, exist_ok=True)
            mount('--bind', place, '/dev/%s' % name)

    def run(self, words, **kw):
        kw.setdefault('env', self.env)
        return subprocess.run(words, **kw)

    def log(self, name):
        path = os.path.join(self.logs, '%s.log' % name.replace('/', '_'))
        return open(path, 'wb')

    def pools(self):
        ended = self.run(['zpool', 'list', '-H', '-o', 'name'], capture_output=True, text=True, timeout=60)
        return ended.stdout.split()

    def end_processes(self):
        """Ends processes that tests left running: all in this mount namespace except this process."""
        for wanted in (signal.SIGTERM, signal.SIGKILL):
            for _ in range(50):
                left = others()
                if not left:
                    return
                for process in left:
                    try:
                        os.kill(process, wanted)
                    except ProcessLookupError:
                        pass
                time.sleep(0.05)

    def unmount_lost(self):
        """Unmounts mounts without a server. Nothing outside of this mount namespace is affected."""
        with open('/proc/self/mountinfo') as lines:
            places = [line.split()[4] for line in lines if ' - fuse.snowmelt' in line]
        for place in reversed(places):
            subprocess.run(['umount', '-l', place.replace('\\040', ' ')], stderr=subprocess.DEVNULL, check=False)

    def clear(self):
        """Unmounts and destroys everything that a test left."""
        quiet = {'stdout': subprocess.DEVNULL, 'stderr': subprocess.DEVNULL, 'timeout': 60}
        for _ in range(3):
            self.run([self.binary, 'unmount', '-a', '-f'], **quiet)
            for pool in self.pools():
                self.run(['zpool', 'destroy', '-f', pool], **quiet)
            # A pool that cannot be destroyed, or no longer exists, is exported.
            for pool in self.pools():
                self.run(['zpool', 'export', '-f', pool], **quiet)
            if not self.pools():
                return
