"""The test suite of OpenZFS, as Debian packages it: Korn shell scripts in groups, each with a setup and a cleanup.

ZFS's kernel module is not present. Scripts that need it, for zdb or a tunable, are in the list of known failures.
"""
import os
import re
import shutil
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
REAPER = os.path.join(HERE, 'reaper.py')
# Nearly the limit of the suite's own runner. A busy machine needs time.
LIMIT = 300
DISK_BYTES = 4 << 30

# Groups that test zfs and zpool commands. The rest of the suite is about devices, the kernel's caches and similar
# subjects.
GROUPS = (
    'cli_root/zfs_bookmark', 'cli_root/zfs_clone', 'cli_root/zfs_create', 'cli_root/zfs_destroy', 'cli_root/zfs_diff',
    'cli_root/zfs_get', 'cli_root/zfs_inherit', 'cli_root/zfs_mount', 'cli_root/zfs_promote', 'cli_root/zfs_receive',
    'cli_root/zfs_rename', 'cli_root/zfs_rollback', 'cli_root/zfs_send', 'cli_root/zfs_set', 'cli_root/zfs_snapshot',
    'cli_root/zfs_unmount', 'cli_user/zfs_list', 'delegate', 'history', 'quota', 'refquota', 'refreserv', 'reservation',
    'rsend', 'snapshot', 'snapused', 'userquota',
)
# Groups that write nothing to speak of, and look where properties come from.
AS_MADE = ('cli_root/zfs_get',)
STATES = {0: 'pass', 4: 'skip', 5: 'skip', 124: 'slow', 137: 'slow'}

# Commands of the suite that snowmelt provides, or that have no meaning without a kernel module.
NOT_LINKED = ('zfs', 'zpool', 'zdb', 'udevadm', 'modprobe', 'setenforce', 'exportfs', 'zinject')
STUBS = {
    'newfs': 'exec mkfs.ext2 -F -q "$@"',
    'udevadm': 'exit 0',
    'zstreamdump': 'exec zstream dump "$@"',
    # The suite calls: sudo -Eu USER COMMAND...
    'sudo': 'while :; do case $1 in -Eu|-u) user=$2; shift 2;; -E|-n) shift;; *) break;; esac; done\n'
            'exec setpriv --reuid "${user:-root}" --regid "$(id -g "${user:-root}")" --init-groups -- "$@"',
}


# The suite is that of ZFS 2.1, which does not compress by default: scripts write zeros and count them. It looks for
# pools in all devices, which are files here. The volumes of each pool are served in a directory, see docs/zfs.md.
ZPOOL = '''zpool() {{ (exec -a zpool {zpool} "$@"); }}
volumes_of() {{ echo {volumes}/"$1"; }}
hide() {{    # hide POOL: a pool in use does not go, so the process that serves its volumes has to end first
  local server at
  mountpoint -q "$(volumes_of "$1")" || return 0
  umount "$(volumes_of "$1")" || return 0
  rm -f /dev/zvol/"$1"
  server=$(cat "$(volumes_of "$1").pid")
  for at in $(seq 200); do [ -e "/proc/$server/exe" ] || break; sleep 0.05; done
}}
show() {{
  local pool dir at
  for pool in $(zpool list -H -o name 2> /dev/null); do
    dir=$(volumes_of "$pool")
    mkdir -p "$dir" /dev/zvol
    mountpoint -q "$dir" && continue
    # Not in the directory of the script, which it would keep in use.
    (cd / && exec setsid {snowmelt} serve zvol "$dir" "$pool") < /dev/null > /dev/null 2>&1 &
    echo $! > "$dir.pid"
    for at in $(seq 50); do mountpoint -q "$dir" && break; sleep 0.05; done
    ln -sfn "$dir/$pool" /dev/zvol/"$pool"
  done
}}
verb=$1
case $verb in
  create) shift; set -- create $SUITE_POOL_OPTIONS "$@" ;;
  import) case " $* " in *" -d "*|*" -c "*) ;; *) shift; set -- import -d {files} "$@" ;; esac ;;
  export|destroy) for word in "${{@:2}}"; do case $word in -*) ;; *) hide "$word" ;; esac; done ;;
esac
zpool "$@"
status=$?
case $verb in create|import|export|destroy) show ;; esac
exit $status'''


def share(world):
    return os.path.join(world.suites, 'zts/usr/share/zfs')


def functional(world, *names):
    return os.path.join(share(world), 'zfs-tests/tests/functional', *names)


def tests(world):
    names = []
    for group in GROUPS:
        directory = functional(world, group)
        if not os.path.isdir(directory):
            continue
        scripts = sorted(name[:-4] for name in os.listdir(directory) if name.endswith('.ksh'))
        names += ['%s/%s' % (group, name) for name in scripts if name not in ('setup', 'cleanup')]
    return names


def run(world, names):
    groups = {}
    for name in names:
        groups.setdefault(name.rsplit('/', 1)[0], []).append(name)
    if not groups:
        return {}
    suite = Suite(world)
    found = {}
    for group, members in groups.items():
        suite.group(group, members, found)
    return found


class Suite:
    """The environment that the scripts expect from the suite's runner."""

    def __init__(self, world):
        self.world = world
        world.devices()
        self.bin = world.path('stf')
        self.files = world.path('files')
        os.chmod(self.files, 0o777)
        temporary = world.path('vartmp')
        os.chmod(temporary, 0o1777)
        # The path of the scratch directory may be long. From here on /var/tmp is not used.
        self.link()
        self.tunables()
        stf = os.path.join(share(world), 'zfs-tests')
        self.env = dict(
            world.env, PATH=self.bin, STF_TOOLS=os.path.join(share(world), 'test-runner'), STF_SUITE=stf,
            STF_PATH=self.bin,
            FILEDIR=self.files, TEST_BASE_DIR=self.files, KEEP='rpool', __ZFS_POOL_EXCLUDE='rpool',
            TESTFAIL_CALLBACKS='',
            HOSTID='1', DISKS=' '.join(self.disks()))
        shell = '. $STF_SUITE/include/default.cfg; env -0'
        self.env.update(self.sourced(shell))

    def sourced(self, text):
        """The environment after a shell script has run."""
        full = dict(self.env, PATH=self.world.env['PATH'])
        ended = subprocess.run([self.ksh(), '-c', text], env=full, capture_output=True, check=False)
        pairs = [pair.split('=', 1) for pair in ended.stdout.decode(errors='replace').split('\0') if '=' in pair]
        return {name: value for name, value in pairs if name not in ('PATH', '_', 'PWD', 'SHLVL', 'OLDPWD')}

    def ksh(self):
        return shutil.which('ksh') or os.path.join(self.world.suites, 'zts/bin/ksh93')

    def disks(self):
        return [os.path.join(self.files, 'file-vdev%d' % at) for at in range(3)]

    def link(self):
        """Links every command of the suite, because the scripts have no other PATH."""
        world, stf = self.world, os.path.join(share(self.world), 'zfs-tests')
        commands = subprocess.run(
            ['bash', '-c', '. "$1"; echo $SYSTEM_FILES_COMMON $SYSTEM_FILES_LINUX', 'bash',
             os.path.join(stf, 'include/commands.cfg')],
            capture_output=True, text=True, check=True).stdout.split()
        unpacked = [os.path.join(world.suites, 'zts', place) for place in ('usr/bin', 'bin', 'usr/sbin', 'sbin')]
        path = os.pathsep.join([os.environ['PATH'], *unpacked])
        for name in {*commands, 'comm', 'tac', 'mountpoint', 'setsid', 'bash', 'setpriv', 'id', 'mke2fs', 'mkfs.ext2',
                     'xxh128sum'}:
            found = shutil.which(name, path=path)
            if found and name not in NOT_LINKED and name not in STUBS:
                self.place(name, found)
        self.place('ksh', self.ksh())
        self.place('nawk', shutil.which('gawk') or shutil.which('awk'))
        helpers = os.path.join(stf, 'bin')
        for name in os.listdir(helpers):
            self.place(name, os.path.join(helpers, name))
        for name in ('zfs', 'mount.zfs'):
            self.place(name, os.path.join(world.bin, name))
        libraries = os.path.join(world.suites, 'zts/lib/x86_64-linux-gnu')
        # ZFS's own zstream, except for `token`, which needs the kernel.
        stubs = dict(STUBS, zstream='[ "$1" != token ] || exec %s "$@"\nLD_LIBRARY_PATH=%s exec %s "$@"' % (
            os.path.join(world.bin, 'zstream'), libraries, os.path.join(world.suites, 'zts/sbin/zstream')))
        stubs['zpool'] = ZPOOL.format(zpool=os.path.join(world.bin, 'zpool'), snowmelt=world.binary, files=self.files,
                                      volumes=world.path('volumes'))
        stubs['pgrep'] = 'exec %s %s %s "$@"' % (sys.executable, os.path.join(HERE, 'pgrep.py'), shutil.which('pgrep'))
        for name, text in stubs.items():
            place = os.path.join(self.bin, name)
            if os.path.lexists(place):
                os.unlink(place)
            with open(place, 'w') as file:
                file.write('#!/bin/bash\n%s\n' % text)
            os.chmod(place, 0o755)
        # The first line of the scripts names ksh.
        if not os.path.lexists('/bin/ksh') and not os.path.lexists('/usr/bin/ksh'):
            from .world import overlay
            overlay('/usr/bin', world.top)
            os.symlink(self.ksh(), '/usr/bin/ksh')

    def place(self, name, target):
        path = os.path.join(self.bin, name)
        if os.path.lexists(path):
            os.unlink(path)
        os.symlink(target, path)

    def tunables(self):
        """Tunables of the kernel's module, which scripts set and read again. Here they are files without effect."""
        subprocess.run(['mount', '-t', 'tmpfs', 'tmpfs', '/sys/module'], check=True)
        places = ['/sys/module/%s/parameters' % module for module in ('zfs', 'zcommon')]
        for place in places:
            os.makedirs(place)
        with open(os.path.join(share(self.world), 'zfs-tests/include/tunables.cfg')) as lines:
            for line in lines:
                words = line.split()
                if len(words) >= 3 and re.match('[A-Z]', line) and words[2] != 'UNSUPPORTED':
                    for place in places:
                        with open(os.path.join(place, words[2]), 'w') as file:
                            file.write('0\n')

    def fresh(self):
        """Removes everything that one group leaves."""
        volumes = self.world.path('volumes')
        for name in os.listdir(volumes):
            if not name.endswith('.pid'):
                subprocess.run(['umount', '-l', os.path.join(volumes, name)], stderr=subprocess.DEVNULL, check=False)
        self.world.clear()
        # A server of volumes keeps its pool open, and an interrupted transfer keeps its dataset open.
        self.world.end_processes()
        self.world.unmount_lost()
        for name in filter(lambda name: name.endswith('.pid'), os.listdir(volumes)):
            os.unlink(os.path.join(volumes, name))
        for name in os.listdir(self.files):
            path = os.path.join(self.files, name)
            (shutil.rmtree if os.path.isdir(path) and not os.path.islink(path) else os.unlink)(path)
        for disk in self.disks():
            with open(disk, 'wb') as file:
                file.truncate(DISK_BYTES)

    def script(self, group, name):
        """Runs a script. Returns its status, or 124 if it was stopped."""
        path = functional(self.world, group, '%s.ksh' % name)
        if not os.path.exists(path):
            return 0
        words = [sys.executable, REAPER, 'timeout', '-k', '5', str(LIMIT), self.ksh(), '-p', path]
        with self.world.log('%s_%s' % (group, name)) as log:
            return subprocess.run(words, env=self.env, cwd=self.world.top, stdin=subprocess.DEVNULL, stdout=log,
                                  stderr=log,
                                  check=False).returncode

    def group(self, group, names, found):
        self.env['SUITE_POOL_OPTIONS'] = '' if group in AS_MADE else '-O compression=off'
        self.fresh()
        ready = self.script(group, 'setup')
        for name in names:
            if ready != 0:
                found[name] = ('fail', 'the setup of its group failed')
                continue
            begun = time.monotonic()
            status = self.script(group, name.rsplit('/', 1)[1])
            state = STATES.get(status, 'fail')
            found[name] = (state, '' if state == 'pass' else self.why(name))
            print('%-60s %-5s %6.1f s' % (name, state, time.monotonic() - begun), flush=True)
            if state != 'pass':
                # The remains of a failed test, such as a read-only pool, must not affect the next tests.
                if state != 'slow':
                    self.script(group, 'cleanup')
                self.fresh()
                self.script(group, 'setup')
        self.script(group, 'cleanup')

    def why(self, name):
        """The first line that reports an error."""
        with open(os.path.join(self.world.logs, '%s.log' % name.replace('/', '_')), errors='replace') as lines:
            for line in lines:
                if line.startswith('ERROR:') and 'Retry in' not in line:
                    return line.strip()[:160]
        return ''
