"""syncoid, as Debian has it: local, push and pull over ssh."""
import os
import re
import threading

from .report import Failed
from .tools_world import World


class Syncoid:
    def __init__(self, report, binary, scratch, program):
        self.program = program
        with open(program, errors='replace') as f:
            text = f.read()
        self.version = re.search(r"VERSION = '([^']*)'", text).group(1)
        self.is_new = 'use-hold' in text
        self.report, self.binary = report, binary
        self.scratch = os.path.join(scratch, 'syncoid-' + self.version)

    def jobs(self):
        tests = [self.local, self.trees, self.bookmarks, self.cut, self.push, self.pull, self.at_once, self.options]
        if self.is_new:
            tests += [self.holds, self.properties, self.deletions]
        for test in tests:
            yield 'syncoid %s %s' % (self.version, test.__name__), test

    def world(self, name):
        return World(self.binary, os.path.join(self.scratch, name))

    def command(self, world, *words):
        world.here.next_second()
        command = ['perl', self.program, '--no-privilege-elevation', *words]
        if world.sshd:
            # syncoid has no option for a configuration file.
            at = command.index('--no-privilege-elevation')
            d = world.top + '/ssh'
            command[at:at] = ['--sshport=%d' % world.port, '--sshkey=%s/user' % d,
                              '--sshoption=StrictHostKeyChecking=no',
                              '--sshoption=UserKnownHostsFile=/dev/null', '--sshoption=LogLevel=ERROR']
        return command

    def sync(self, world, *words, **kw):
        return world.here.tool_ok(self.command(world, *words), **kw)

    def local(self, world):
        for name in ('mon', 'tue'):
            world.change('pond/home', name)
        self.sync(world, 'pond/home', 'well/home')
        world.same('pond/home', 'well/home', 3)
        world.change('pond/home', 'wed')
        world.here.zfs('snapshot', 'pond/home@thu')
        self.sync(world, 'pond/home', 'well/home')
        world.same('pond/home', 'well/home', 5)
        # syncoid keeps only the newest of its own snapshots.
        own = [name for name in world.here.of('pond/home') if name.startswith('syncoid_')]
        if len(own) != 1:
            raise Failed('snapshots of syncoid: %s' % own)
        world.change('pond/home', 'fri')
        self.sync(world, '--no-sync-snap', 'pond/home', 'well/home')
        world.same('pond/home', 'well/home', 6)
        # Nothing to do.
        self.sync(world, '--no-sync-snap', 'pond/home', 'well/home')
        # A target that was written to is rolled back, except with --no-rollback.
        world.change('well/home', 'astray', replica=True)
        world.change('pond/home', 'sat')
        if world.here.tool(self.command(world, '--no-sync-snap', '--no-rollback', 'pond/home',
                                        'well/home')).status == 0:
            raise Failed('--no-rollback went over a newer snapshot')
        if 'astray' not in world.here.of('well/home'):
            raise Failed('--no-rollback rolled back')
        self.sync(world, '--no-sync-snap', 'pond/home', 'well/home')
        world.same('pond/home', 'well/home', 6)

    def trees(self, world):
        for name in ('pond/tree', 'pond/tree/a', 'pond/tree/a/deep', 'pond/tree/z'):
            world.change(name, 'one')
        # A clone that sorts before its origin, and a clone of that clone (which syncoid handles only in this order).
        world.here.zfs('clone', 'pond/tree/z@one', 'pond/tree/clone')
        world.here.zfs('snapshot', 'pond/tree/clone@two')
        world.here.zfs('clone', 'pond/tree/clone@two', 'pond/tree/clone2')
        world.here.zfs('create', '-s', '-V', '8M', 'pond/tree/vol')
        names = ['', '/a', '/a/deep', '/z', '/clone', '/clone2', '/vol']
        self.sync(world, '-r', 'pond/tree', 'well/tree')
        for name in names:
            world.same('pond/tree' + name, 'well/tree' + name)
        for name, origin in (('clone', 'well/tree/z@one'), ('clone2', 'well/tree/clone@two')):
            found = world.here.get('origin', 'well/tree/' + name)
            if found != origin:
                raise Failed('origin of well/tree/%s: %s' % (name, found))
        world.change('pond/tree/a/deep', 'three')
        world.change('pond/tree/new', 'three')
        self.sync(world, '-r', 'pond/tree', 'well/tree')
        for name in names + ['/new']:
            world.same('pond/tree' + name, 'well/tree' + name)
        # Excluded by a property, and by a pattern.
        world.here.zfs('set', 'syncoid:sync=false', 'pond/tree/a')
        world.here.zfs('create', 'well/some')
        self.sync(world, '-r', '--skip-parent', '--exclude=z$', 'pond/tree', 'well/some')
        found = world.here.zfs('list', '-Ho', 'name', '-r', 'well/some').split()
        if 'well/some/new' not in found or 'well/some/a' in found or 'well/some/z' in found:
            raise Failed('with exclusions: %s' % found)

    def bookmarks(self, world):
        world.change('pond/home', 'one')
        self.sync(world, '--no-sync-snap', '--create-bookmark', 'pond/home', 'well/home')
        if world.here.zfs('list', '-Ho', 'name', '-t', 'bookmark', '-d', '1', 'pond/home') != 'pond/home#one\n':
            raise Failed('no bookmark')
        world.change('pond/home', 'two')
        world.here.zfs('destroy', 'pond/home@one')
        self.sync(world, '--no-sync-snap', '--create-bookmark', 'pond/home', 'well/home')
        world.same('pond/home', 'well/home')
        if 'one' not in world.here.of('well/home'):
            raise Failed('the target lost its old snapshot')

    def cut(self, world):
        world.change('pond/home', 'one', 60)
        size = int(world.here.zfs('send', '-nP', 'pond/home@one').split()[-1])
        # After each cut, more data is left than the next connection lets through.
        for percent in (5, 40, 30):
            path = world.cutting(size * percent // 100)
            if world.here.tool(self.command(world, 'pond/home', 'well/cut'), path=path).status == 0:
                raise Failed('a stream cut at %d %% was taken for whole' % percent)
            if percent > 5 and world.here.get('receive_resume_token', 'well/cut') == '-':
                raise Failed('nothing to resume at %d %%' % percent)
        ended = self.sync(world, 'pond/home', 'well/cut')
        if 'Resuming interrupted' not in ended.out + ended.err:
            raise Failed('not resumed: %s' % ended)
        # The changes after the resumed snapshot.
        self.sync(world, 'pond/home', 'well/cut')
        world.same('pond/home', 'well/cut', 2)
        # The snapshot of an interrupted transfer was destroyed: it starts again.
        world.change('pond/home', 'two', 60)
        size = int(world.here.zfs('send', '-nP', '-i', '@one', 'pond/home@two').split()[-1])
        world.here.tool(self.command(world, '--no-sync-snap', 'pond/home', 'well/cut'), path=world.cutting(size // 2))
        if world.here.get('receive_resume_token', 'well/cut') == '-':
            raise Failed('nothing to resume of the increment')
        before = list(world.here.of('pond/home'))[-2]
        world.here.zfs('rollback', '-r', 'pond/home@' + before)
        world.change('pond/home', 'three')
        self.sync(world, '--no-sync-snap', 'pond/home', 'well/cut')
        self.sync(world, '--no-sync-snap', 'pond/home', 'well/cut')
        world.same('pond/home', 'well/cut', 2)

    def push(self, world):
        world.start_sshd()
        source, target, place = 'pond/home', '%s:lake/home' % world.address, 'lake/home'
        world.change('pond/home', 'one', 40)
        world.change('pond/home/sub', 'one')
        self.sync(world, '-r', source, target)
        world.same('pond/home', place, 2)
        world.same('pond/home/sub', place + '/sub', 2)
        world.change('pond/home', 'two')
        self.sync(world, '-r', '--compress=none', source, target)
        world.same('pond/home', place, 3)
        world.change('pond/home', 'three', 40)
        size = int(world.here.zfs('send', '-nP', '-i', '@two', 'pond/home@three').split()[-1])
        world.here.tool(self.command(world, '--no-sync-snap', source, target), path=world.cutting(size // 2))
        if world.there.get('receive_resume_token', place) == '-':
            raise Failed('nothing to resume')
        self.sync(world, '--no-sync-snap', source, target)
        self.sync(world, '--no-sync-snap', source, target)
        world.same('pond/home', place, 3)

    def pull(self, world):
        world.start_sshd()
        world.change('pond/home', 'one', 40)
        world.change('pond/home/sub', 'one')
        self.sync(world, '-r', 'pond/home', '%s:lake/home' % world.address)
        world.there.zfs('snapshot', '-r', 'lake/home@back')
        self.sync(world, '-r', '%s:lake/home' % world.address, 'well/home')
        world.same('lake/home', 'well/home', 3)
        world.same('lake/home/sub', 'well/home/sub', 3)
        world.there.zfs('snapshot', 'lake/home@again')
        self.sync(world, '%s:lake/home' % world.address, 'well/home')
        world.same('lake/home', 'well/home', 4)

    def at_once(self, world):
        """Several syncs at once, from one pool into the same pool and into others, while other processes read."""
        for number in range(6):
            world.change('pond/d%d' % number, 'one', 20)
        failures = []

        def one(number):
            try:
                target = ('pond/copy%d' if number % 2 else 'well/copy%d') % number
                for _ in range(2):
                    self.sync(world, 'pond/d%d' % number, target)
                world.same('pond/d%d' % number, target, 2)
            except Failed as e:
                failures.append(str(e))

        def look():
            try:
                for _ in range(10):
                    world.here.zfs('list', '-H', '-t', 'all')
                    world.here.tool_ok(['zpool', 'status'])
            except Failed as e:
                failures.append(str(e))

        threads = [threading.Thread(target=one, args=(number,)) for number in range(6)]
        threads += [threading.Thread(target=look) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise Failed('\n'.join(failures))

    def options(self, world):
        world.change('pond/home', 'one', 30)
        world.here.zfs('set', 'compression=lz4', 'pond/home')
        world.here.zfs('set', 'my:note=kept', 'pond/home')
        self.sync(world, '--sendoptions=L c e p', '--recvoptions=u o readonly=on x compression',
                  '--preserve-recordsize', 'pond/home', 'well/home')
        world.same('pond/home', 'well/home', 2)
        for name, value in (('readonly', 'on'), ('my:note', 'kept')):
            if world.here.get(name, 'well/home') != value:
                raise Failed('%s is %s' % (name, world.here.get(name, 'well/home')))
        # Two targets, each with its own snapshots.
        for number in (1, 2, 1, 2):
            self.sync(world, '--identifier=target%d' % number, 'pond/home', 'well/target%d' % number)
        own = [name for name in world.here.of('pond/home') if name.startswith('syncoid_target')]
        if len(own) != 2:
            raise Failed('snapshots of two targets: %s' % own)
        # A target with something else is replaced only with the option for that.
        world.change('pond/other', 'its')
        self.sync(world, '--no-sync-snap', 'pond/other', 'well/target3')
        if world.here.tool(self.command(world, 'pond/home', 'well/target3')).status == 0:
            raise Failed('a target without a common snapshot was taken')
        if 'its' not in world.here.of('well/target3'):
            raise Failed('a target without a common snapshot was destroyed')
        self.sync(world, '--force-delete', 'pond/home', 'well/target3')
        world.same('pond/home', 'well/target3', 2)

    # ---- since 2.2 -------------------------------------------------------------------------

    def holds(self, world):
        world.change('pond/home', 'one')
        for name in ('two', 'three'):
            self.sync(world, '--use-hold', 'pond/home', 'well/home')
            for dataset in ('pond/home', 'well/home'):
                newest = list(world.here.of(dataset))[-1]
                held = world.here.zfs('holds', '-H', *['%s@%s' % (dataset, s) for s in world.here.of(dataset)])
                rows = [line.split('\t') for line in held.split('\n') if line]
                if [row[0] for row in rows] != ['%s@%s' % (dataset, newest)] or not rows[0][1].startswith('syncoid_'):
                    raise Failed('holds: %s' % rows)
            world.change('pond/home', name)
        self.sync(world, '--use-hold', 'pond/home', 'well/home')
        world.same('pond/home', 'well/home', 2)

    def properties(self, world):
        world.change('pond/home', 'one')
        for pair in ('compression=gzip', 'quota=1G', 'my:note=kept', 'recordsize=32K'):
            world.here.zfs('set', pair, 'pond/home')
        self.sync(world, '--preserve-properties', 'pond/home', 'well/home')
        world.same('pond/home', 'well/home', 2)
        for name, value in (('compression', 'gzip'), ('my:note', 'kept'), ('recordsize', '32768')):
            if world.here.get(name, 'well/home') != value:
                raise Failed('%s is %s' % (name, world.here.get(name, 'well/home')))

    def deletions(self, world):
        for name in ('one', 'two', 'three'):
            world.change('pond/home', name)
        self.sync(world, '--no-sync-snap', 'pond/home', 'well/home')
        world.here.zfs('destroy', 'pond/home@one,two')
        world.change('pond/home', 'four')
        self.sync(world, '--no-sync-snap', '--delete-target-snapshots', 'pond/home', 'well/home')
        world.same('pond/home', 'well/home', 2)
        if list(world.here.of('well/home')) != ['three', 'four']:
            raise Failed('snapshots of the target: %s' % list(world.here.of('well/home')))
