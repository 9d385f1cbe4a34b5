"""Pools in a file: one that is filled and emptied repeatedly, and one that stays 70 % full while its content changes.

A writer that finds no space runs the cleaner. The wall time and the written bytes of the writer therefore include the
cleaner's cost.
"""
import os
import random
import statistics
import subprocess
import tempfile
import time

MIB = 1 << 20
POOL = 'refill'
BLOCK = 128 << 10
PIECES = 20                 # number of datasets that fill a pool
KEPT = 0.7                  # share of the pool that stays in use while the content changes
LEAK_MAX = 1 * MIB          # maximum growth of the bytes in use in an emptied pool, since it was first emptied
STEADY_MIN = 0.7            # minimum speed as a share of the first fill's speed


class Filled:
    """A pool in a file. Counts the bytes received, the bytes written for them, and the time."""

    def __init__(self, bench, name, size):
        self.bench, self.melt = bench, bench.home('refill-' + name)
        self.image, self.guid = os.path.join(bench.dir, name + '.img'), 0
        self.melt.ok('pool', 'create', '--size', str(size), POOL, self.image)
        self.room = self.number('get', '-Hp', '-o', 'value', 'available', POOL)
        self.forget()

    def forget(self):
        self.payload = self.written = 0
        self.wall = 0.0

    def number(self, *args):
        return int(self.melt.ok(*args).out)

    def allocated(self):
        return self.number('pool', 'list', '-Hp', '-o', 'alloc', POOL)

    def command(self, *args, stdin=subprocess.DEVNULL):
        """Returns whether there was space."""
        with tempfile.TemporaryFile() as err:
            begun = time.monotonic()
            child = self.melt.start(args, stdin=stdin, stdout=subprocess.DEVNULL, stderr=err)
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
            self.wall += time.monotonic() - begun
            self.written += usage.ru_oublock * 512
            err.seek(0)
            said = err.read().decode()
        if child.returncode != 0 and 'out of space' not in said:
            raise SystemExit('%s failed: %s' % (args, said))
        return child.returncode == 0

    def receive(self, name, kind, payload, *args):
        """Returns whether there was space."""
        self.guid += 1
        words = [kind, '--block', str(BLOCK), '--guid', str(self.guid), '--name', 'bench/v@%d' % self.guid,
                 *map(str, args)]
        maker = subprocess.Popen([self.bench.gen, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        fits = self.command('receive', '-u', '%s/%s' % (POOL, name), stdin=maker.stdout)
        maker.stdout.close()
        maker.wait()
        self.payload += payload if fits else 0
        return fits

    def must(self, done):
        if not done:
            listed = self.melt.run('pool', 'list', POOL).out.decode()
            raise SystemExit('a pool that should have room has none: %s' % listed)

    def speed(self):
        return self.payload / self.wall / 1e6

    def amplification(self):
        return self.written / self.payload

    def close(self):
        self.melt.close()
        os.remove(self.image)


def whole(size):
    """A size rounded down to whole blocks."""
    return int(size) // BLOCK * BLOCK


def measure(bench, size, times):
    fills(bench, size, times)
    replaced(bench, size)
    rewritten(bench, size)


def fills(bench, size, times):
    """Receives datasets until the pool is full, then destroys all of them, repeatedly."""
    pool, piece, speeds, amplification, full, empty = Filled(bench, 'fills', size), whole(size / PIECES), [], [], [], []
    for _ in range(times):
        pool.forget()
        names = []
        while pool.receive('v%d' % len(names), 'volume', piece, '--size', piece):
            names.append('v%d' % len(names))
        speeds.append(pool.speed())
        amplification.append(pool.amplification())
        full.append(pool.payload)
        for name in names:
            pool.must(pool.command('destroy', '-r', '%s/%s' % (POOL, name)))
        empty.append(pool.allocated())
    pool.close()
    late = statistics.median(speeds[-5:])
    bench.row('refill: speed of the last of %d fills' % times, late, 'MB/s', speeds[0], 'MB/s first', late / speeds[0],
              STEADY_MIN, firm=False)
    bench.row('refill: what fits the last time', full[-1] / MIB, 'MiB', full[0] / MIB, 'MiB first', full[-1] / full[0],
              1)
    bench.row('refill: written for each byte, all fills', statistics.mean(amplification), 'B/B')
    bench.row('refill: in use when emptied, since the first time', (empty[-1] - empty[0]) / MIB, 'MiB',
              limit=LEAK_MAX / MIB, at_most=True)


def replaced(bench, size):
    """At 70 %, random datasets of a hundredth of the pool are destroyed and others received."""
    pool, piece, rng = Filled(bench, 'replaced', size), whole(size / 100), random.Random(1)
    names = ['v%d' % n for n in range(int(pool.room * KEPT) // piece)]
    for name in names:
        pool.must(pool.receive(name, 'volume', piece, '--size', piece))
    first = pool.speed()
    for turn in range(3):       # three times the data in use; the last turn is measured
        pool.forget()
        for _ in names:
            name = rng.choice(names)
            pool.must(pool.command('destroy', '-r', '%s/%s' % (POOL, name)))
            pool.must(pool.receive(name, 'volume', piece, '--size', piece))
    steady = pool.speed()
    bench.row('datasets replaced in a pool 70 % full', steady, 'MB/s', first, 'MB/s first', steady / first, STEADY_MIN,
              firm=False)
    bench.row('datasets replaced: written for each byte', pool.amplification(), 'B/B')
    pool.close()


def rewritten(bench, size):
    """At 70 %, a tenth of a volume's blocks, at random places, are new in each snapshot, and the previous snapshot is
    destroyed. All segments then lose blocks evenly, and nearly as much must be moved as is written."""
    pool = Filled(bench, 'rewritten', size)
    kept = whole(pool.room * KEPT / 1.1)
    changes = kept // BLOCK // 10
    pool.must(pool.receive('v', 'volume', kept, '--size', kept))
    first = pool.speed()
    for turn in range(30):      # the last third is measured
        if turn == 20:
            pool.forget()
        pool.must(pool.receive('v', 'volume-changes', changes * BLOCK, '--size', kept, '--changes', changes, '--from',
                               pool.guid))
        pool.must(pool.command('destroy', '%s/v@%d' % (POOL, pool.guid - 1)))
    steady = pool.speed()
    bench.row('blocks rewritten in a pool 70 % full', steady, 'MB/s', first, 'MB/s first', steady / first)
    bench.row('blocks rewritten: written for each byte', pool.amplification(), 'B/B')
    pool.close()
