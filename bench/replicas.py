"""The cost of a replica: `snowmelt sync` compared with rsync, btrfs send, restic and borg, on the same trees in the
same run.

For each tree and each program: a first copy, and then copies of changes. Every program has its own copy, which is
deleted before the next program begins. The changes are made anew for each program.
"""
import json
import os
import random
import re
import shlex
import shutil
import subprocess
import time

import imports

MIB, GIB = 1 << 20, 1 << 30
PIECE = 16 << 10            # bytes of one change in an image
PER_DIRECTORY = 100
SMALL_FILE = 4 << 10        # maximum bytes
TREE_SECONDS, TREE_BYTES = 0.1, 100_000     # limits for a touch or a rename


def stored(top):
    """Bytes of all files below a directory."""
    return sum(os.lstat(os.path.join(where, name)).st_size for where, _, names in os.walk(top) for name in names)


class FromFiles:
    """`snowmelt sync` of a directory into a filesystem, or of an image into a volume."""
    name = 'sync FILES pool/copy'

    def __init__(self, bench, tree, source):
        self.melt, self.source = bench.home('replica'), tree.source(source)

    def copy(self):
        cost = imports.Cost([self.melt.binary, 'sync', '--json', self.source, 'bench/fs'], self.melt.env, self.melt.top)
        cost.sent = json.loads(cost.out.split(b'\n')[0])['written']
        return cost

    def close(self):
        self.melt.close()


class FromDataset(FromFiles):
    """`snowmelt sync pool/fs copy/fs`, after the files were imported."""
    name = 'sync pool/fs copy/fs'

    def __init__(self, bench, tree, source):
        super().__init__(bench, tree, source)
        self.melt.create_pool('copy')

    def copy(self):
        self.melt.ok('import', self.source, 'bench/fs', timeout=3600)
        cost = imports.Cost([self.melt.binary, 'sync', '--json', '--no-snapshot', 'bench/fs', 'copy/fs'], self.melt.env,
                            self.melt.top)
        cost.sent = json.loads(cost.out.split(b'\n')[0])['bytes']
        return cost


class Shadowed(FromFiles):
    """`snowmelt sync FILES host:copy/fs`. The other machine is another home directory. Only hashes are kept here."""
    name = 'sync FILES host:copy/fs'

    def __init__(self, bench, tree, source):
        super().__init__(bench, tree, source)
        self.melt.create_pool('copy')
        self.state = os.path.join(self.melt.top, 'here')
        self.rsh = os.path.join(self.melt.top, 'rsh')
        env = ' '.join(shlex.quote('%s=%s' % item) for item in self.melt.env.items())
        with open(self.rsh, 'w') as f:
            f.write('#!/bin/sh\nshift\nexec env %s sh -c "$1"\n' % env)
        os.chmod(self.rsh, 0o755)

    def copy(self):
        env = dict(self.melt.env, HOME=self.state, XDG_DATA_HOME=self.state, XDG_STATE_HOME=self.state)
        command = [self.melt.binary, 'sync', '--json', '-e', self.rsh, '--remote-command', self.melt.binary,
                   self.source, 'host:copy/fs']
        cost = imports.Cost(command, env, self.melt.top)
        cost.sent = json.loads(cost.out.split(b'\n')[0])['bytes']
        return cost


class Peer:
    """A program that copies the directory whatever is in it."""

    def __init__(self, bench, _, source):
        super().__init__(bench, source)


class Rsync(Peer, imports.Rsync):
    """rsync with delta transfer as over a network. By default it sends whole files between local directories."""

    def copy(self):
        cost = self.run()
        cost.sent = sum(int(n.replace(',', '')) for n in re.findall(r'Total bytes (?:sent|received): ([\d,]+)',
                                                                    cost.out.decode()))
        return cost

    def again(self):
        return ['rsync', '-aHAX', '--delete-before', '--no-whole-file', '--stats', self.source + '/',
                self.repository + '/']


class Repository(Peer):
    """A program with a repository. The growth of the repository counts as sent."""

    def copy(self):
        before = stored(self.repository)
        cost = self.run()
        cost.sent = stored(self.repository) - before
        return cost


class Restic(Repository, imports.Restic):
    pass


class Borg(Repository, imports.Borg):
    pass


class Btrfs:
    """Snapshots of the subvolume with the trees, and `btrfs send` of them into another filesystem."""
    name = 'btrfs send'
    program = 'btrfs'

    def __init__(self, bench, _, source):
        self.source, self.count = source, 0
        self.place = os.path.join(bench.dir, 'btrfs-copy')
        self.disk = Disk(self.place, bench.size['disk'])

    def copy(self):
        at = '%s/.at-%%d' % self.source
        subprocess.run(['btrfs', 'subvolume', 'snapshot', '-r', self.source, at % self.count], check=True,
                       capture_output=True)
        since = '-p "$1" ' if self.count else ''
        script = 'btrfs send -q %s"$0" | tee >(wc -c >&2) | btrfs receive -q "$2" && btrfs filesystem sync "$2" >&2' % since
        cost = imports.Cost(['bash', '-c', script, at % self.count, at % (self.count - 1), self.place], None, None)
        cost.sent = int(re.search(rb'\d+', cost.err).group())
        self.count += 1
        return cost

    def close(self):
        for number in range(self.count):
            subprocess.run(['btrfs', 'subvolume', 'delete', '%s/.at-%d' % (self.source, number)], check=True,
                           capture_output=True)
        self.disk.close()


class Disk:
    """btrfs in a sparse file."""

    def __init__(self, place, size):
        self.place, self.image = place, place + '.img'
        os.makedirs(place)
        with open(self.image, 'wb') as f:
            f.truncate(size)
        subprocess.run(['mkfs.btrfs', '-q', '-m', 'single', self.image], check=True, capture_output=True)
        subprocess.run(['mount', '-o', 'loop', self.image, place], check=True)

    def close(self):
        subprocess.run(['umount', self.place], check=True)
        os.rmdir(self.place)
        os.remove(self.image)


# ---- trees and their changes --------------------------------------------------------------------------

def said(size):
    return '%g GiB' % (size / GIB) if size >= GIB else '%g MiB' % (size / MIB)


def fill(path, size):
    with open(path, 'wb') as f:
        for _ in range(size // MIB):
            f.write(os.urandom(MIB))


class Tree:
    def source(self, top):
        """The source for snowmelt."""
        return top


class OneFile(Tree):
    """A file of any size that is touched and then renamed."""
    changes = ('touched', 'renamed')

    def __init__(self, size):
        self.size, self.name = size, said(size)

    def make(self, top):
        fill(os.path.join(top, 'file'), self.size)

    def change(self, top, what):
        path = next(os.path.join(top, name) for name in os.listdir(top) if name.startswith('file'))
        if what == 'touched':
            os.utime(path)
        else:
            os.rename(path, path + '-renamed' if path.endswith('file') else path.removesuffix('-renamed'))


class Image(Tree):
    """A disk image with scattered changes, as from a virtual machine."""
    changes = ('written to',)

    def __init__(self, size, pieces):
        self.size, self.pieces, self.random = size, pieces, random.Random(1)
        self.name = 'image of %s, %d x %d KiB' % (said(size), pieces, PIECE >> 10)

    def source(self, top):
        return os.path.join(top, 'disk.img')

    def make(self, top):
        fill(self.source(top), self.size)

    def change(self, top, _):
        with open(self.source(top), 'r+b') as f:
            for _ in range(self.pieces):
                f.seek(self.random.randrange(self.size // PIECE) * PIECE)
                f.write(self.random.randbytes(PIECE))


class Many(Tree):
    """Many files, of which one in a hundred gets new content."""
    changes = ('1 % changed',)

    def __init__(self, count):
        self.count, self.random, self.name = count, random.Random(2), '%d files' % count

    def path(self, top, number):
        return os.path.join(top, '%04d' % (number // PER_DIRECTORY), 'file-%02d' % (number % PER_DIRECTORY))

    def write(self, path):
        with open(path, 'wb') as f:
            f.write(self.random.randbytes(self.random.randrange(1, SMALL_FILE)))

    def make(self, top):
        for number in range(self.count):
            path = self.path(top, number)
            if number % PER_DIRECTORY == 0:
                os.mkdir(os.path.dirname(path))
            self.write(path)

    def change(self, top, _):
        for number in self.random.sample(range(self.count), self.count // 100):
            self.write(self.path(top, number))


# ---- the table ---------------------------------------------------------------------------------------

WIDTHS = '%-42s %-22s %9s %9s %12s %12s'
HEADER = ('tree', 'program', 'wall s', 'CPU s', 'sent MB', 'read MB')


def line(bench, tree, program, cost):
    row = dict(tree=tree, program=program, wall=cost.wall, cpu=cost.cpu, sent=cost.sent, read=cost.read)
    bench.table.append(row)
    print(WIDTHS % (tree, program, '%.3f' % cost.wall, '%.3f' % cost.cpu, '%.4f' % (cost.sent / 1e6),
                    '%.3f' % (cost.read / 1e6)), flush=True)


def measure(bench):
    peers = [peer for peer in (Rsync, Btrfs, Restic, Borg) if shutil.which(peer.program)]
    missing = [peer.program for peer in (Rsync, Btrfs, Restic, Borg) if peer not in peers]
    if missing:
        print('not installed, so not compared with: ' + ', '.join(missing))
    trees = [OneFile(size) for size in bench.size['synced']] + [Image(bench.size['disk_image'], bench.size['pieces']),
                                                                Many(bench.size['imported'])]
    print(WIDTHS % HEADER)
    for tree in trees:
        place = os.path.join(bench.dir, 'tree')
        disk = Disk(place, bench.size['disk']) if Btrfs in peers else None
        source = os.path.join(place, 'source')
        if disk:
            subprocess.run(['btrfs', 'subvolume', 'create', source], check=True, capture_output=True)
        else:
            os.makedirs(source)
        try:
            tree.make(source)
            os.sync()
            for kind in (FromFiles, FromDataset, Shadowed, *peers):
                program = kind(bench, tree, source)
                try:
                    one(bench, tree, source, program)
                finally:
                    program.close()
        finally:
            shutil.rmtree(source, ignore_errors=True)
            if disk:
                disk.close()


def one(bench, tree, source, program):
    line(bench, tree.name + ', first', program.name, program.copy())
    for what in tree.changes:
        time.sleep(1.1)         # rsync does not notice changes within the same second
        tree.change(source, what)
        cost = program.copy()
        line(bench, '%s, %s' % (tree.name, what), program.name, cost)
        if isinstance(program, FromDataset) and isinstance(tree, OneFile):
            bench.row('%s %s, dataset to dataset' % (tree.name, what), cost.wall, 's', limit=TREE_SECONDS, at_most=True,
                      firm=False)
            bench.row('%s %s: sent' % (tree.name, what), cost.sent / 1000, 'kB', limit=TREE_BYTES / 1000, at_most=True)
