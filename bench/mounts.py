"""The measurements of mounts for `run.py`: the same work on our mount and on a FUSE filesystem that only passes
everything on."""
import os
import subprocess
import time

from tiers.mounted import Mounted

MIB = 1 << 20
# The pattern is incompressible, and longer than the CPU's caches.
PATTERN_BYTES = 64 * MIB


class Passthrough:
    """A directory of the same disk, through the passthrough FUSE filesystem."""

    def __init__(self, binary, top):
        self.binary, self.below, self.dir = binary, os.path.join(top, 'below'), os.path.join(top, 'mnt')
        os.makedirs(self.below)
        os.makedirs(self.dir)

    def mount(self):
        self.server = subprocess.Popen([self.binary, self.below, self.dir])
        Mounted.wait('mount', lambda: os.path.ismount(self.dir))

    def unmount(self):
        subprocess.run(['umount', self.dir], check=True)
        self.server.wait()

    def remount(self):
        self.unmount()
        self.mount()

    def close(self):
        if os.path.ismount(self.dir):
            self.unmount()


def write(path, size, pattern):
    """Seconds to write a file in pieces of 1 MiB and to sync it."""
    begun = time.monotonic()
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644)
    for at in range(0, size, MIB):
        from_ = at % PATTERN_BYTES
        os.write(fd, pattern[from_:from_ + MIB])
    os.fsync(fd)
    os.close(fd)
    return time.monotonic() - begun


def read(path):
    """Seconds to read a file completely, of which this mount has nothing cached."""
    buf = bytearray(MIB)
    begun = time.monotonic()
    with open(path, 'rb', buffering=0) as f:
        while f.readinto(buf):
            pass
    return time.monotonic() - begun


def metadata(top, count):
    """Operations per second: create, stat of uncached names, list with attributes, delete."""
    where = os.path.join(top, 'many')
    os.mkdir(where)
    paths = [os.path.join(where, '%d' % n) for n in range(count)]
    rates = {}

    def timed(what, work):
        begun = time.monotonic()
        work()
        rates[what] = count / (time.monotonic() - begun)

    timed('create', lambda: [os.close(os.open(p, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)) for p in paths])
    time.sleep(1.1)     # longer than the kernel caches names
    timed('stat', lambda: [os.stat(p) for p in paths])
    timed('list', lambda: [entry.stat() for entry in os.scandir(where)])
    timed('delete', lambda: [os.unlink(p) for p in paths])
    os.rmdir(where)
    return rates


def measure(bench, ours, peer, size, count, repeats):
    """Rows for both mounts, measured alternately."""
    pattern = memoryview(os.urandom(PATTERN_BYTES))
    times = {'write': ([], []), 'read': ([], [])}
    rates = []
    for mounted in (ours, peer):
        mounted.mount()
    for turn in range(repeats):
        for which, mounted in enumerate((ours, peer)):
            path = os.path.join(mounted.dir, 'large')
            times['write'][which].append(write(path, size, pattern))
            mounted.remount()
            read(path)      # from here on the data below is in the page cache, for both
            mounted.remount()
            times['read'][which].append(read(path))
            os.unlink(path)
    for mounted in (ours, peer):
        rates.append(metadata(mounted.dir, count))
        mounted.unmount()
    for what in ('write', 'read'):
        a, b = (size / min(seconds) / 1e6 for seconds in times[what])
        bench.row('mount: large %s' % what, a, 'MB/s', b, 'MB/s passthrough', a / b, 0.7, firm=False)
    for what in rates[0]:
        a, b = rates[0][what] / 1e3, rates[1][what] / 1e3
        bench.row('mount: %s' % what, a, 'k/s', b, 'k/s passthrough', a / b)
