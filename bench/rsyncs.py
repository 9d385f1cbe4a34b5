"""Content over rsync's protocol, with either program at either end, and the cost of a renamed directory."""
import json
import os
import random
import re
import shutil
import tempfile
import time

from indexes import Daemon, free_port

MIB = 1 << 20
WHEN = 1_600_000_000
PER_DIRECTORY = 100
REPEATS = 3
TICK = 1 / os.sysconf('SC_CLK_TCK')
# Limits of the wall time as a ratio to rsync's, where it is stable enough.
LIMITS = dict(large=dict(pulled_durable=1, served=1, served_cpu=1, received=1, received_cpu=1, received_durable=1),
              small=dict(pulled=1, served=1, served_cpu=1, received=1, received_cpu=1))


def fill(path, size, seed):
    rng = random.Random(seed)
    with open(path, 'wb') as file:
        for at in range(0, size, MIB):
            file.write(rng.randbytes(min(MIB, size - at)))
    os.utime(path, (WHEN, WHEN))


def grow(root, files):
    for at in range(files):
        directory = os.path.join(root, str(at // PER_DIRECTORY))
        os.makedirs(directory, exist_ok=True)
        fill(os.path.join(directory, str(at)), 500 + at % 2000, at)


def shell(top):
    """A command that replaces ssh for both programs and records the cost of the server."""
    path = os.path.join(top, 'shell')
    with open(path, 'w') as file:
        file.write('#!/bin/sh\nshift\nsh -c "$*"\ncode=$?\ntimes > "$0.times"\nexit $code\n')
    os.chmod(path, 0o755)
    return path


def shell_spent(path):
    """CPU seconds of the last server: `times` prints user and system time of the shell, then of its children."""
    with open(path + '.times') as file:
        texts = file.read().split()[2:]
    return sum(60 * float(minutes) + float(seconds)
               for minutes, seconds in (text.rstrip('s').split('m') for text in texts))


def prime(path, size):
    """Makes the system allocate memory for `size` bytes, and frees it. In a virtual machine, memory that was unused for
    long is much slower to use. Otherwise a program that runs after one that freed much memory would seem twice as fast.
    """
    with open(path, 'wb') as file:
        for _ in range(size // MIB):
            file.write(bytes(MIB))
    os.remove(path)


def read_all(top):
    """Reads all files of a tree into the page cache, because some may have been evicted."""
    for directory, _, names in os.walk(top):
        for name in names:
            with open(os.path.join(directory, name), 'rb', buffering=0) as file:
                while file.read(MIB):
                    pass


class Aside:
    """A directory for copies of many files until all measurements are done. After files were deleted, ext4 examines all
    of them for some seconds before it creates new ones. That takes longer than the measured work."""

    def __init__(self, top):
        self.top, self.count = os.path.join(top, 'aside'), 0
        os.makedirs(self.top, exist_ok=True)

    def put(self, path):
        if os.path.exists(path):
            self.count += 1
            os.rename(path, os.path.join(self.top, str(self.count)))

    def clear(self):
        shutil.rmtree(self.top)


def in_memory(top, size):
    """A place for a client's copy of `size` bytes, in memory if it fits. Writing it to a disk takes the client longer
    than the measured work of the server."""
    memory = '/dev/shm'
    if os.path.ismount(memory):
        there = os.statvfs(memory)
        if there.f_bavail * there.f_frsize >= size:
            return tempfile.TemporaryDirectory(prefix='snowmelt-bench-', dir=memory)
    return tempfile.TemporaryDirectory(dir=top)


class Best:
    """The minimum of several runs: wall time, and CPU time of the server, in seconds."""

    def __init__(self):
        self.wall = self.cpu = float('inf')

    def add(self, wall, cpu):
        self.wall, self.cpu = min(self.wall, wall), min(self.cpu, cpu)


def measure(bench, timed, pool, large, small, moved):
    if shutil.which('rsync') is None:
        return print('rsync: rsync is not there')
    melt, top = bench.home('rsync-pool'), os.path.join(bench.dir, 'rsync')
    os.makedirs(os.path.join(top, 'large'))
    fill(os.path.join(top, 'large', 'file'), large, 1)
    grow(os.path.join(top, 'small'), small)
    port, config = free_port(), os.path.join(top, 'rsyncd.conf')
    with open(config, 'w') as file:
        file.write('use chroot = no\nuid = 0\ngid = 0\n[m]\npath = %s\nread only = no\n' % top)
    with open(config + '.ours', 'w') as file:
        file.write('uid = 0\ngid = 0\n[m]\npath = %s\n' % top)
    stock = Daemon(['rsync', '--daemon', '--no-detach', '--config', config, '--address', '127.0.0.1', '--port',
                    str(port)], port)
    ours = Daemon([bench.binary, 'serve', 'rsync', '--config', config + '.ours', '--address', '127.0.0.1', '--port',
                   '0'])
    try:
        for name, what in (('large', 'a file of %d MiB' % (large // MIB)), ('small', '%d files' % small)):
            transfer(bench, timed, (melt, pool, top), (stock, ours), name, what, large * 3 // 2)
        renames(bench, timed, (melt, pool, top), stock, moved)
    finally:
        stock.close()
        ours.close()
        melt.close()
        shutil.rmtree(top, ignore_errors=True)


def transfer(bench, timed, where, daemons, name, what, memory):
    (melt, pool, top), (stock, ours) = where, daemons
    copy, rsh, tree = os.path.join(top, 'copy'), shell(top), os.path.join(top, name) + '/'
    url = 'rsync://127.0.0.1:%d/m/' % stock.port
    source, aside = pool + '/' + name, Aside(top)
    melt.ok('sync', url + name, source)

    def ready(server):
        aside.put(copy)
        if name == 'large':     # there is no disk space for many copies
            aside.clear()
            os.makedirs(aside.top)
        for place in (tree, melt.top):
            read_all(place)
        prime(os.path.join(top, 'prime'), memory)
        server.spent()

    def rsync(*args, server=None, **kw):
        ready(server or stock)
        wall = timed(['rsync', '-aHAX', *args], **kw).wall
        return wall, (server or stock).spent()[0]

    def over_shell(*args, **kw):
        return rsync('-e', rsh, tree, *args, **kw)[0], shell_spent(rsh)

    def sync(*args):
        ready(stock)
        wall = bench.run(melt, 'sync', *args).wall
        return wall, stock.spent()[0]

    def fresh(run):
        """Runs with a new dataset, which is destroyed afterwards."""
        melt.ok('create', pool + '/fresh')
        done = run(pool + '/fresh')
        melt.ok('destroy', '-r', pool + '/fresh')
        return done

    def compare(key, row, mine, theirs, with_cpu=False):
        """Runs both alternately, because other programs use the machine too."""
        one, other, row = Best(), Best(), '%s, %s' % (row, what)
        for _ in range(REPEATS):
            other.add(*theirs())
            one.add(*mine())

        def told(row, key, one, other):
            limit = LIMITS[name].get(key)
            bench.row(row, one, 's', other, 's rsync', one / max(other, TICK), limit=limit, at_most=True, firm=False)
        told(row, key, one.wall, other.wall)
        if with_cpu:
            told(row + ', CPU of the server', key + '_cpu', one.cpu, other.cpu)

    def pulled():
        return fresh(lambda dataset: sync(url + name, dataset))

    def pushed(dataset):
        return over_shell('host:%s/' % dataset, '--rsync-path=%s rsync' % bench.binary, env=melt.env, cwd=melt.top)

    compare('pulled', 'pulled from rsync', pulled, lambda: rsync(url + name + '/', copy + '/'))
    if name == 'large':     # it takes minutes for thousands of files
        compare('pulled_durable', 'the same, beside rsync --fsync', pulled,
                lambda: rsync('--fsync', url + name + '/', copy + '/'))
    with in_memory(top, memory) as here:
        def pull(server):
            shutil.rmtree(os.path.join(here, 'copy'), ignore_errors=True)
            return rsync('rsync://127.0.0.1:%d/m/%s/' % (server.port, name), os.path.join(here, 'copy/'), server=server)
        compare('served', 'served to rsync', lambda: pull(ours), lambda: pull(stock), with_cpu=True)
    compare('received', 'received from rsync over a remote shell', lambda: fresh(pushed),
            lambda: over_shell('--no-W', 'host:' + copy + '/'), with_cpu=True)
    if name == 'large':
        compare('received_durable', 'the same, beside rsync --fsync', lambda: fresh(pushed),
                lambda: over_shell('--no-W', '--fsync', 'host:' + copy + '/'), with_cpu=True)
    compare('pushed', 'pushed to rsync', lambda: sync(source + '@', url + 'copy'), lambda: rsync(tree, url + 'copy/'))
    shutil.rmtree(copy, ignore_errors=True)
    aside.clear()


def sent(out):
    """Bytes in both directions, from `rsync --stats`."""
    return sum(int(number) for number in re.findall(r'Total bytes (?:sent|received): (\d+)', out))


def renames(bench, timed, where, stock, size):
    """A directory that is renamed at the source."""
    melt, pool, top = where
    here, there = pool + '/moved', pool + '/moved-copy'
    source, copy = os.path.join(top, 'moved'), 'rsync://127.0.0.1:%d/m/moved-copy/' % stock.port
    os.makedirs(os.path.join(source, 'old'))
    for at in range(8):
        fill(os.path.join(source, 'old', str(at)), size // 8, at)
    melt.ok('import', source, here)
    melt.ok('sync', here, there)
    timed(['rsync', '-a', source + '/', copy])
    os.rename(os.path.join(source, 'old'), os.path.join(source, 'new'))
    melt.ok('import', source, here)
    told = os.path.join(top, 'stats')
    theirs = timed(['rsync', '-a', '--delete', '--stats', '--no-h', source + '/', copy], stdout=told)
    with open(told) as file:
        theirs_sent = sent(file.read())
    begun = time.monotonic()
    mine = json.loads(melt.ok('sync', '--json', here, there).out)
    wall = time.monotonic() - begun
    name = 'a renamed directory of %d MiB' % (size // MIB)
    bench.row('sent for ' + name, mine['bytes'] / MIB, 'MiB', theirs_sent / MIB, 'MiB rsync', limit=1, at_most=True)
    bench.row('wall for ' + name, wall, 's', theirs.wall, 's rsync', wall / theirs.wall)
