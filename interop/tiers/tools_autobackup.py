"""zfs_autobackup from PyPI: backs up, thins and resumes, also over ssh, and its zfs-check. Its zfs-autoverify prints
that it is incomplete, and does nothing."""
import os

from .corpus import ROOT
from .report import Failed
from .tools_world import World


# It mounts received datasets if their properties allow that, which would need FUSE.
UNMOUNTED = ('-o', 'mountpoint=none')

# zfs-check mounts snapshots with `mount -t zfs`, and looks for volumes in /dev/zvol. $1 is the directory with the
# helper of mount(8), $2 the program, $3 the pool. The rest is the command. All of this is in a private mount namespace.
IN_PLACE = '''
mount -t overlay overlay -o lowerdir="$1":/usr/sbin /usr/sbin && mkdir -p /dev/zvol || exit 9
"$2" serve zvol /dev/zvol "$3" > /dev/null & server=$!
until mountpoint -q /dev/zvol; do kill -0 $server || exit 9; sleep 0.05; done
shift 3
"$@"; status=$?
kill $server; wait $server; rmdir /dev/zvol
exit $status
'''


class Autobackup:
    def __init__(self, report, binary, scratch, directory):
        self.directory = directory
        self.binary, self.scratch = binary, os.path.join(scratch, 'autobackup')

    def jobs(self):
        for test in (self.local, self.thinning, self.cut, self.push, self.pull, self.check):
            yield 'zfs_autobackup %s' % test.__name__, test

    def world(self, name):
        world = World(self.binary, os.path.join(self.scratch, name))
        world.change('pond/home', 'mine')
        world.change('pond/home/sub', 'mine')
        world.here.zfs('create', '-s', '-V', '4M', 'pond/home/vol')
        world.here.zfs('set', 'autobackup:test=true', 'pond/home')
        return world

    def command(self, world, *words):
        world.here.next_second()
        return ['python3', self.directory + '/bin/zfs-autobackup', '--verbose', '--allow-empty', *words]

    def backup(self, world, *words, **kw):
        ended = world.here.tool(self.command(world, *words), PYTHONPATH=self.directory, **kw)
        return ended

    def backup_ok(self, world, *words, **kw):
        ended = self.backup(world, *words, **kw)
        if ended.status != 0 or '! ' in ended.err:
            raise Failed(ended)
        return ended

    def same(self, world, target, least, source='pond/home'):
        for name in ('', '/sub', '/vol'):
            world.same(source + name, '%s/%s%s' % (target, source, name), least)

    def local(self, world):
        world.here.zfs('create', *UNMOUNTED, 'well/backup')
        self.backup_ok(world, 'test', 'well/backup')
        self.same(world, 'well/backup', 1)
        world.change('pond/home', 'other')
        world.here.zfs('clone', 'pond/home/sub@mine', 'pond/home/clone')
        for _ in range(2):
            self.backup_ok(world, '--other-snapshots', '--set-properties=readonly=on', 'test', 'well/backup')
        self.same(world, 'well/backup', 3)
        world.same('pond/home/clone', 'well/backup/pond/home/clone', 1)
        if world.here.get('readonly', 'well/backup/pond/home/clone') != 'on':
            raise Failed('readonly was not set')
        # A target that was written to.
        world.change('well/backup/pond/home', 'astray', replica=True)
        if self.backup(world, 'test', 'well/backup').status == 0:
            raise Failed('a newer snapshot of the target was gone over')
        self.backup_ok(world, '--destroy-incompatible', '--rollback', 'test', 'well/backup')
        self.same(world, 'well/backup', 4)

    def thinning(self, world):
        world.here.zfs('create', *UNMOUNTED, 'well/backup')
        for _ in range(5):
            self.backup_ok(world, '--keep-source=2', '--keep-target=3', 'test', 'well/backup')
        for dataset, count in (('pond/home/sub', 2), ('well/backup/pond/home/sub', 3)):
            own = [name for name in world.here.of(dataset) if name.startswith('test-')]
            if len(own) != count:
                raise Failed('%s has %s' % (dataset, own))
        # The last common snapshot is held at both ends.
        held = world.here.zfs('holds', '-H', 'pond/home@' + list(world.here.of('pond/home'))[-1])
        if 'zfs_autobackup:test' not in held:
            raise Failed('holds: %r' % held)

    def cut(self, world):
        world.here.zfs('create', *UNMOUNTED, 'well/backup')
        world.change('pond/home', 'big', 80)
        target = 'well/backup/pond/home'
        if self.backup(world, 'test', 'well/backup', path=world.cutting(200_000)).status == 0:
            raise Failed('a stream cut off was taken for whole')
        if world.here.get('receive_resume_token', target) == '-':
            raise Failed('nothing to resume')
        ended = self.backup_ok(world, 'test', 'well/backup')
        if 'resum' not in (ended.out + ended.err).lower():
            raise Failed('not resumed: %s' % ended)
        self.same(world, 'well/backup', 1)

    def push(self, world):
        world.start_sshd()
        world.there.zfs('create', *UNMOUNTED, 'lake/backup')
        for name in ('two', 'three'):
            self.backup_ok(world, '--ssh-config', world.ssh_config, '--ssh-target', 'there', 'test', 'lake/backup')
            self.same(world, 'lake/backup', 1)
            world.change('pond/home', name)

    def pull(self, world):
        world.start_sshd()
        world.there.zfs('create', 'lake/home')
        world.there.zfs('set', 'autobackup:test=true', 'lake/home')
        world.there.zfs('create', 'lake/home/sub')
        world.here.zfs('create', *UNMOUNTED, 'well/backup')
        for _ in range(2):
            self.backup_ok(world, '--ssh-config', world.ssh_config, '--ssh-source', 'there', 'test', 'well/backup')
        for name in ('', '/sub'):
            world.same('lake/home' + name, 'well/backup/lake/home' + name, 2)

    def check(self, world):
        image = os.path.join(world.top, 'image')
        with open(image, 'wb') as out:
            out.write(os.urandom(4 << 20))
        world.here.ok('import', image, 'pond/home/vol@image')
        # Its lists of hashes cannot contain names with tabs, which other trees of these tests have.
        world.here.ok('import', os.path.join(ROOT, 'docs'), 'pond/home/docs@here')
        world.here.zfs('create', *UNMOUNTED, 'well/backup')
        self.backup_ok(world, 'test', 'well/backup')
        snapshot = list(world.here.of('pond/home'))[-1]
        for name in ('/docs', '/vol'):
            source, target = 'pond/home%s@%s' % (name, snapshot), 'well/backup/pond/home%s@%s' % (name, snapshot)
            hashes = os.path.join(world.top, name.strip('/') + '.hashes')
            ended = self.zfs_check(world, source)
            if ended.status != 0 or '\t' not in ended.out:
                raise Failed(ended)
            with open(hashes, 'w', errors='surrogateescape') as out:
                out.write(ended.out)
            ended = self.zfs_check(world, target, '--check', hashes)
            if ended.status != 0:
                raise Failed(ended)
            # A wrong hash is found.
            with open(hashes, errors='surrogateescape') as lines:
                first, *rest = [line for line in lines if '\t' in line]
            with open(hashes, 'w', errors='surrogateescape') as out:
                out.writelines([first.rsplit('\t', 1)[0] + '\t' + '0' * 40 + '\n', *rest])
            if self.zfs_check(world, target, '--check', hashes).status == 0:
                raise Failed('a wrong hash was taken for right')

    def zfs_check(self, world, target, *words):
        return world.here.tool(['unshare', '-m', 'sh', '-c', IN_PLACE, 'sh', world.here.bin, self.binary,
                                target.split('/')[0],
                                'python3', self.directory + '/bin/zfs-check', '--count', '100', *words, target],
                               PYTHONPATH=self.directory)
