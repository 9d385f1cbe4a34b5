"""`serve rsync` with an index compared with stock `rsync --daemon`: the cost of a client that already has all or nearly
all files."""
import os
import random
import shutil
import socket
import subprocess
import time

PER_DIRECTORY = 16
BEHIND = 100                # one in this many files has changed
SUFFIXES = ('.dsc', '.debian.tar.xz', '.orig.tar.xz', '_amd64.deb', '_arm64.deb', '_i386.deb', '-dev_amd64.deb',
            '-doc_all.deb')
MIB = 1 << 20


def grow(root, files):
    """Makes a tree with names as on a Debian mirror. The contents are holes, because file lists do not depend on them.
    """
    rng, made, paths = random.Random(7), 0, []
    while made < files:
        package = ''.join(rng.choice('abcdefghijklmnopqrstuvwxyz') for _ in range(rng.randint(4, 13)))
        directory = os.path.join('pool', 'main', package[0], package)
        os.makedirs(os.path.join(root, directory), exist_ok=True)
        for at in range(min(PER_DIRECTORY, files - made)):
            version = '%d.%d.%d-%d' % (rng.randrange(9), rng.randrange(30), at, rng.randrange(4))
            path = os.path.join(directory, '%s_%s%s' % (package, version, SUFFIXES[at % len(SUFFIXES)]))
            with open(os.path.join(root, path), 'wb') as file:
                file.truncate(rng.randrange(1, 1 << 20))
            when = rng.randrange(1_500_000_000, 1_700_000_000) * 10 ** 9 + rng.randrange(10 ** 9)
            os.utime(os.path.join(root, path), ns=(when, when))
            paths.append(path)
            made += 1
    return paths


def drop_caches(bench):
    """Drops the page cache, as after a reboot. Not in CI, where other programs would be slowed down."""
    if not bench.quick:
        os.sync()
        with open('/proc/sys/vm/drop_caches', 'w') as file:
            file.write('3')


class Disk:
    """A filesystem in a file, so that its reads can be counted while other programs use the disk."""

    def __init__(self, image, top, files):
        self.image, self.top = image, top
        with open(image, 'wb') as file:
            file.truncate(1 << 31)
        subprocess.run(['mkfs.ext4', '-q', '-N', str(2 * files + 1000), image], check=True)
        self.loop = subprocess.run(['losetup', '--find', '--show', image], check=True, stdout=subprocess.PIPE,
                                   text=True).stdout.strip()
        subprocess.run(['mount', self.loop, top], check=True)

    def reads(self):
        """Number of read requests since the filesystem was made."""
        with open('/sys/block/%s/stat' % os.path.basename(self.loop)) as file:
            return int(file.read().split()[0])

    def close(self):
        subprocess.run(['umount', self.top])
        subprocess.run(['losetup', '--detach', self.loop])
        os.remove(self.image)


class Daemon:
    """A server, and its cost (with children) since the last query."""

    def __init__(self, command, port=None, env=None):
        self.child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env)
        self.port = port or int(self.child.stdout.readline().rsplit(b':', 1)[1])
        self.wait()
        self.before = self.counters()

    def wait(self):
        """Waits until the server accepts connections."""
        while True:
            try:
                return socket.create_connection(('127.0.0.1', self.port)).close()
            except ConnectionRefusedError:
                if self.child.poll() is not None:
                    raise SystemExit('a server ended')
                time.sleep(0.01)

    def counters(self):
        """CPU seconds, and bytes read from disks, including ended children."""
        with open('/proc/%d/stat' % self.child.pid) as file:
            ticks = file.read().rsplit(')', 1)[1].split()[11:15]
        with open('/proc/%d/io' % self.child.pid) as file:
            io = dict(line.split(': ') for line in file.read().splitlines())
        return sum(map(int, ticks)) / os.sysconf('SC_CLK_TCK'), int(io['read_bytes'])

    def spent(self):
        before, self.before = self.before, self.counters()
        return tuple(now - then for now, then in zip(self.before, before))

    def resident(self):
        """Private bytes of the process, without the pages of its program."""
        with open('/proc/%d/status' % self.child.pid) as file:
            return next(int(line.split()[1]) for line in file if line.startswith('RssAnon')) << 10

    def pull(self, *args):
        """Wall seconds of one client."""
        begun = time.monotonic()
        subprocess.run(['rsync', '--port', str(self.port), *args], check=True, stdout=subprocess.DEVNULL)
        return time.monotonic() - begun

    def crowd(self, count):
        """Runs `count` clients at once that only list. Returns the peak memory in bytes."""
        command = ['rsync', '--port', str(self.port), '-r', '--list-only', 'localhost::m/']
        clients = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(count)]
        most = self.resident()
        while any(client.poll() is None for client in clients):
            most = max(most, self.resident())
            time.sleep(0.01)
        if any(client.returncode for client in clients):
            raise SystemExit('a client failed')
        return most

    def close(self):
        self.child.terminate()
        self.child.wait()


class Huai:
    """The method of rsync-huai: its daemon lists a tree in memory whose files hold the sizes of the served files."""

    def __init__(self, bench, program, tree, module):
        config = os.path.join(bench.dir, 'huai.conf')
        self.program, self.tree, self.attributes = program, tree, config + '.attributes'
        os.makedirs(self.attributes)
        drop_caches(bench)
        before = self.taken()
        subprocess.run(['mount', '-t', 'tmpfs', 'attributes', self.attributes], check=True)
        self.update()
        drop_caches(bench)
        self.memory = self.taken() - before
        with open(config, 'w') as file:
            file.write(module.replace('path = %s' % tree, 'path = %s\nreal file prefix = %s' % (self.attributes, tree)))
        port = free_port()
        self.daemon = Daemon([program, '--daemon', '--no-detach', '--config', config, '--address', '127.0.0.1',
                              '--port', str(port)], port)

    def taken(self):
        """Bytes that files in memory take, and the kernel's memory for all files."""
        with open('/proc/meminfo') as file:
            return sum(int(line.split()[1]) for line in file
                       if line.startswith(('Shmem:', 'SUnreclaim:', 'SReclaimable:'))) << 10

    def update(self):
        subprocess.run([self.program, '-a', '--delete', '--only-send-attrs', self.tree + '/', self.attributes],
                       check=True)

    def close(self):
        self.daemon.close()
        subprocess.run(['umount', self.attributes])


def free_port():
    with socket.socket() as it:
        it.bind(('127.0.0.1', 0))
        return it.getsockname()[1]


def measure(bench, files, clients):
    if shutil.which('rsync') is None:
        return print('indexes: rsync is not there')
    top = os.path.join(bench.dir, 'indexes')
    tree, index, config = (os.path.join(top, name) for name in ('tree', 'tree.index', 'rsyncd.conf'))
    memory = '/dev/shm' if os.access('/dev/shm', os.W_OK) else bench.dir
    target = os.path.join(memory, 'snowmelt-bench-%d' % os.getpid())     # the client's own reads must not count
    os.makedirs(top)
    ours = stock = disk = huai = None
    try:
        if os.geteuid() == 0 and not bench.quick:
            disk = Disk(top + '.disk', top, files)
        os.makedirs(tree)
        paths = grow(tree, files)
        subprocess.run(['cp', '-a', '--sparse=always', tree, target], check=True)
        begun = time.monotonic()
        subprocess.run([bench.binary, 'index', '-q', tree, index], check=True)
        bench.row('index of %d files' % files, time.monotonic() - begun, 's')
        bench.row('size of the index, a file', os.path.getsize(index) / files, 'bytes', limit=60, at_most=True)
        module = 'use chroot = no\nuid = %d\ngid = %d\n[m]\npath = %s\n' % (os.getuid(), os.getgid(), tree)
        for name, more in ((config, ''), (config + '.ours', 'index = %s\n' % index)):
            with open(name, 'w') as file:
                file.write(module + more)
        port = free_port()
        stock = Daemon(['rsync', '--daemon', '--no-detach', '--config', config, '--address', '127.0.0.1', '--port',
                        str(port)], port)
        if os.environ.get('RSYNC_HUAI') and disk:
            huai = Huai(bench, os.environ['RSYNC_HUAI'], tree, module)
            bench.row('rsync-huai: memory for its tree', huai.memory / MIB, 'MiB')
        drop_caches(bench)
        before = disk and disk.reads()
        ours = Daemon([bench.binary, 'serve', 'rsync', '--config', config + '.ours', '--address', '127.0.0.1', '--port',
                       '0'])
        if disk:
            bench.row('loading the index, nothing cached', disk.reads() - before, 'reads', limit=100, at_most=True)
        bench.row('memory of the server, index loaded', ours.resident() / MIB, 'MiB', limit=12, at_most=True)
        compare(bench, disk, 'up to date', (ours, stock, huai), ['-an', 'localhost::m/', target], wall_max=1.5,
                read_max=0)
        behind(tree, paths)
        if huai:
            huai.update()
        subprocess.run([bench.binary, 'index', '-q', tree, index], check=True)
        # The data goes into a file, so that both servers serve the same client.
        batch = ['-a', '--only-write-batch=%s.batch' % target, 'localhost::m/', target]
        compare(bench, disk, 'one in %d behind' % BEHIND, (ours, stock, huai), batch)
        crowds(bench, ours, stock, clients)
    finally:
        for daemon in (ours, stock, huai):
            if daemon is not None:
                daemon.close()
        if disk:
            disk.close()
        shutil.rmtree(target, ignore_errors=True)
        for name in (target + '.batch', target + '.batch.sh'):
            if os.path.exists(name):
                os.remove(name)
        shutil.rmtree(top, ignore_errors=True)


def behind(tree, paths):
    """Changes some files at the source. The client's tree stays unchanged."""
    for path in paths[::BEHIND]:
        with open(os.path.join(tree, path), 'wb') as file:
            file.write(b'changed ' * 512)


def compare(bench, disk, what, servers, args, wall_max=None, read_max=None):
    """One client of each server, with nothing of the tree cached."""
    ours, stock, huai = servers
    figures = []
    for daemon in (ours, stock, *([huai.daemon] if huai else [])):
        daemon.pull(*args)      # so that the programs themselves are cached
        drop_caches(bench)
        daemon.spent()
        before = disk.reads() if disk else 0
        wall = daemon.pull(*args)
        figures.append((wall, *daemon.spent(), disk.reads() - before if disk else 0))
    (wall, cpu, read, reads), (stock_wall, stock_cpu, stock_read, stock_reads) = figures[:2]
    for figure in figures[2:]:
        for figure, other, name in zip(figure, figures[1], ('wall, s', 'CPU of the server, s', 'bytes read from disk',
                                                            'reads')):
            bench.row('rsync-huai: a client %s, %s' % (what, name), figure, '', other, 'rsync')
    bench.row('a client %s, wall' % what, wall, 's', stock_wall, 's rsync', limit=wall_max, at_most=True, firm=False)
    bench.row('a client %s, CPU of the server' % what, cpu, 's', stock_cpu, 's rsync')
    bench.row('a client %s, read from disk' % what, read / MIB, 'MiB', stock_read / MIB, 'MiB rsync', limit=read_max,
              at_most=True)
    if disk:
        bench.row('a client %s, reads' % what, reads, 'reads', stock_reads, 'rsync', limit=read_max, at_most=True)


def crowds(bench, ours, stock, clients):
    before = ours.resident()
    ours.spent(), stock.spent()
    most = ours.crowd(clients)
    stock.crowd(clients)
    (cpu, _), (stock_cpu, _) = ours.spent(), stock.spent()
    bench.row('%d clients at once, CPU of the server each' % clients, cpu / clients, 's', stock_cpu / clients,
              's rsync')
    bench.row('%d clients at once, memory each' % clients, (most - before) / clients / MIB, 'MiB', limit=3,
              at_most=True)
    bench.row('memory kept after %d clients' % clients, (ours.resident() - before) / MIB, 'MiB')
