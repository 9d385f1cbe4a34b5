#!/usr/bin/env python3
"""Measures snowmelt against other programs in the same run, and against its promised limits.

  bench/run.py [--quick] [--only NAME] [--json FILE] [--dir DIR]

Prints one row per figure: the subject, our figure, the other program's figure, the ratio, the limit, and whether it was
met. The exit status is 0 only if every limit was met. Each time is the best of a few runs, ours and the other program's
alternately. --quick uses sizes for CI (a minute or two) and judges only the limits that do not depend on the disk or on
other load of the machine. README.md explains each measurement.
"""
import argparse
import datetime
import functools
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
sys.path.insert(0, os.path.join(ROOT, 'interop'))
import imports                          # noqa: E402
import indexes                          # noqa: E402
import many                             # noqa: E402
import mounts                           # noqa: E402
import objects                          # noqa: E402
import refills                          # noqa: E402
import replicas                         # noqa: E402
import rsyncs                           # noqa: E402
import soak                             # noqa: E402
import syncs                            # noqa: E402
import volumes                          # noqa: E402
from tiers.mounted import Mounted       # noqa: E402
from tiers.snowmelt import Snowmelt     # noqa: E402
from tiers.vm import Zstream            # noqa: E402

TEMPLATE = os.path.join(ROOT, 'testdata', 'demo', 'full.zstream')
TARGET = os.environ.get('CARGO_TARGET_DIR', os.path.join(ROOT, 'target'))
POOL = 'bench'
MIB, GIB = 1 << 20, 1 << 30

FULL = dict(verify=4 * GIB, receive=4 * GIB, send=4 * GIB, huge=20 * GIB, files=1_000_000, snapshots=10_000, each=1000,
            sparse=64, mount=4 * GIB, many=(1000, 10), soak=(3600, 400), names=100_000, imported=100_000, large=8 * GIB,
            datasets=1000, syncoid=50, far_files=20_000, synced=(1 * GIB, 8 * GIB), disk_image=1 * GIB, pieces=2000,
            disk=20 * GIB, volume=4 * GIB, served=10, objects=1 * GIB, parity=1 * GIB, encryption=1 * GIB,
            refill=(10 * GIB, 20), indexed=(200_000, 50), rsync=(1 * GIB, 100_000, 1 * GIB), repeats=5)
QUICK = dict(verify=512 * MIB, receive=256 * MIB, send=512 * MIB, huge=1 * GIB, files=20_000, snapshots=300, each=20,
             sparse=8, mount=512 * MIB, many=(60, 2), soak=(20, 60), names=10_000, imported=10_000, large=64 * MIB,
             datasets=50, syncoid=4, far_files=2000, synced=(64 * MIB,), disk_image=64 * MIB, pieces=100, disk=2 * GIB,
             volume=256 * MIB, served=2, objects=512 * MIB, parity=256 * MIB, encryption=256 * MIB, refill=(2 * GIB, 3),
             indexed=(5_000, 4), rsync=(64 * MIB, 2000, 64 * MIB), repeats=2)


class Timed:
    """One finished process: wall and CPU seconds, peak resident bytes."""

    def __init__(self, wall, usage, status, err):
        self.wall, self.cpu, self.rss = wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024
        if status != 0:
            raise SystemExit('a bench command failed with %d: %s' % (status, err))


def timed(command, stdin=None, stdout=subprocess.DEVNULL, env=None, cwd=None):
    """Runs a command; stdin and stdout may be paths, pipes or None."""
    source = open(stdin, 'rb') if isinstance(stdin, str) else stdin or subprocess.DEVNULL
    sink = open(stdout, 'wb') if isinstance(stdout, str) else stdout
    with tempfile.TemporaryFile() as err:
        begun = time.monotonic()
        child = subprocess.Popen(command, stdin=source, stdout=sink, stderr=err, env=env, cwd=cwd)
        if hasattr(source, 'close') and source is not stdin:
            source.close()
        _, status, usage = os.wait4(child.pid, 0)
        wall = time.monotonic() - begun
        child.returncode = os.waitstatus_to_exitcode(status)
        err.seek(0)
        return Timed(wall, usage, child.returncode, err.read().decode('utf-8', 'replace')[-1000:])


def warm(path):
    with open(path, 'rb', buffering=0) as f:
        while f.read(8 * MIB):
            pass


def disk_usage(top):
    """Bytes of all files below a directory, counting only allocated blocks."""
    return sum(os.lstat(os.path.join(path, name)).st_blocks * 512 for path, _, names in os.walk(top) for name in names)


class Bench:
    def __init__(self, args):
        self.size = QUICK if args.quick else FULL
        self.quick, self.only, self.rows, self.table = args.quick, args.only, [], []
        self.dir = tempfile.mkdtemp(prefix='snowmelt-bench-', dir=args.dir)
        self.binary = os.path.abspath(os.environ.get('SNOWMELT', os.path.join(TARGET, 'release', 'snowmelt')))
        if not os.access(self.binary, os.X_OK):
            sys.exit('%s is not there: cargo build --release' % self.binary)

    # ---- tools ---------------------------------------------------------------------------

    @functools.cached_property
    def tools(self):
        """The directory with the programs of this workspace."""
        subprocess.run(['cargo', 'build', '--release', '--quiet', '--manifest-path', os.path.join(HERE, 'Cargo.toml')],
                       check=True)
        target = TARGET if 'CARGO_TARGET_DIR' in os.environ else os.path.join(HERE, 'target')
        return os.path.join(target, 'release')

    @property
    def gen(self):
        """The stream generator."""
        return os.path.join(self.tools, 'gen-stream')

    def row(self, name, ours, unit, peer=None, peer_name='', ratio=None, limit=None, at_most=False, firm=True):
        """Adds a figure. `limit` applies to `ratio` if there is one, otherwise to `ours`. A limit that is not `firm` is
        not judged with --quick."""
        judged = limit is not None and (firm or not self.quick)
        value = ours if ratio is None else ratio
        met = None if not judged else value <= limit if at_most else value >= limit
        self.rows.append(dict(name=name, ours=ours, unit=unit, peer=peer, peer_name=peer_name, ratio=ratio, limit=limit,
                              at_most=at_most, met=met))
        bound = '' if limit is None else '%s %g' % ('<=' if at_most else '>=', limit)
        print('%-46s %10.3f %-7s %-26s %8s %9s  %s' % (
            name, ours, unit, '' if peer is None else '%.3f %s' % (peer, peer_name), '' if ratio is None
            else 'x %.2f' % ratio, bound,
            '' if limit is None else {True: 'ok', False: 'MISSED', None: 'not judged'}[met]), flush=True)

    def home(self, name):
        melt = Snowmelt(self.binary, os.path.join(self.dir, name))
        melt.create_pool(POOL)
        return melt

    def stream(self, name, *args):
        path = os.path.join(self.dir, name)
        with open(path, 'wb') as f:
            subprocess.run([self.gen, *map(str, args)], stdout=f, check=True)
        return path

    def run(self, melt, *args, **kw):
        return timed([self.binary, *args], env=melt.env, cwd=melt.top, **kw)

    def piped(self, melt, dataset, *args):
        """Receives a stream while it is generated, so that it needs no disk space."""
        maker = subprocess.Popen([self.gen, *map(str, args)], stdout=subprocess.PIPE)
        got = self.run(melt, 'receive', '-u', dataset, stdin=maker.stdout)
        maker.stdout.close()
        if maker.wait() != 0:
            raise SystemExit('the stream generator failed')
        return got

    def drained(self, melt, *args):
        """Runs `snowmelt send` into a pipe that is emptied. Only the sender is measured."""
        drain = subprocess.Popen(['cat'], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        got = self.run(melt, 'send', *args, stdout=drain.stdin)
        drain.stdin.close()
        drain.wait()
        return got

    # ---- the measurements -------------------------------------------------------------------

    def verify(self):
        """`stream verify` and ZFS's `zstream dump` on the same cached file."""
        size, zstream = self.size['verify'], Zstream()
        path = self.stream('verify', 'volume', '--size', size)
        warm(path)
        if not zstream.command:
            raise SystemExit('no zstream: build the virtual machine first (interop/vm/build.sh)')
        ours, theirs = [], []
        melt = Snowmelt(self.binary, os.path.join(self.dir, 'verify-home'))
        for _ in range(self.size['repeats']):
            ours.append(self.run(melt, 'stream', 'verify', stdin=path).wall)
            theirs.append(timed([*zstream.command, 'dump', path]).wall)
        a, b = size / min(ours) / 1e9, size / min(theirs) / 1e9
        self.row('stream verify', a, 'GB/s', b, 'GB/s zstream dump', a / b, 1.0, firm=False)
        os.remove(path)

    def receive(self):
        """`receive` into a directory pool and `dd` with fdatasync, from the same cached file."""
        size = self.size['receive']
        path = self.stream('receive', 'volume', '--size', size)
        warm(path)
        ours, theirs, rss = [], [], 0
        for turn in range(max(2, self.size['repeats'] - 2)):
            copy = os.path.join(self.dir, 'dd')
            theirs.append(timed(['dd', 'if=' + path, 'of=' + copy, 'bs=1M', 'conv=fdatasync']).wall)
            os.remove(copy)
            melt = self.home('receive%d' % turn)
            got = self.run(melt, 'receive', '-u', POOL + '/v', stdin=path)
            ours.append(got.wall)
            rss = max(rss, got.rss)
            cpu = got.cpu
            melt.close()
        a, b = size / min(ours) / 1e6, size / min(theirs) / 1e6
        self.row('receive into a directory pool', a, 'MB/s', b, 'MB/s dd fdatasync', a / b, 0.6, firm=False)
        self.row('receive, per second of CPU', size / cpu / 1e9, 'GB/s')
        os.remove(path)

    def send(self):
        """`send` of a cached dataset. Compressed blocks are sent as stored."""
        size = self.size['send']
        melt = self.home('send')
        self.piped(melt, POOL + '/plain', 'volume', '--size', size)
        # about the same number of bytes on disk, with about twice the content
        self.piped(melt, POOL + '/text', 'volume', '--size', size * 2, '--data', 'text', '--compressed')
        plain, packed = [], []
        sizes = {}
        for name in ('plain', 'text'):      # the lengths of the streams; also warms the cache
            out = os.path.join(self.dir, 'sent')
            self.run(melt, 'send', '-c', '%s/%s@a' % (POOL, name), stdout=out)
            sizes[name] = os.path.getsize(out)
            os.remove(out)
        for _ in range(self.size['repeats']):
            plain.append(self.drained(melt, POOL + '/plain@a'))
            packed.append(self.drained(melt, '-c', POOL + '/text@a'))
        a, b = min(p.cpu for p in plain) / sizes['plain'], min(p.cpu for p in packed) / sizes['text']
        self.row('send of a cached dataset, per core', 1e-9 / a, 'GB/s', limit=1.5, firm=False)
        self.row('send of a cached dataset, wall', sizes['plain'] / min(p.wall for p in plain) / 1e9, 'GB/s')
        self.row('send -c, CPU per byte against plain', b * 1e9, 'ns/B', a * 1e9, 'ns/B plain', b / a, 1.1,
                 at_most=True, firm=False)
        melt.close()

    def huge(self):
        """Memory while one large stream is received and sent."""
        size = self.size['huge']
        melt = self.home('huge')
        got = self.piped(melt, POOL + '/v', 'volume', '--size', size)
        self.row('receive of %d GiB, resident' % (size // GIB), got.rss / MIB, 'MiB', limit=300, at_most=True)
        self.row('receive of %d GiB' % (size // GIB), size / got.wall / 1e6, 'MB/s')
        sent = self.drained(melt, POOL + '/v@a')
        self.row('send of %d GiB, resident' % (size // GIB), sent.rss / MIB, 'MiB', limit=300, at_most=True)
        melt.close()

    def files(self):
        """Memory and speed with many small files."""
        count = self.size['files']
        melt = self.home('files')
        args = ('--template', TEMPLATE, '--count', count, '--size', '1K')
        got = self.piped(melt, POOL + '/f', 'files', *args)
        self.row('receive of %d files, resident' % count, got.rss / MIB, 'MiB', limit=300, at_most=True)
        self.row('receive of %d files' % count, count / got.wall / 1000, 'k/s')
        sent = self.drained(melt, POOL + '/f@a')
        self.row('send of %d files, resident' % count, sent.rss / MIB, 'MiB', limit=300, at_most=True)
        self.row('send of %d files' % count, count / sent.wall / 1000, 'k/s')
        change = self.piped(melt, POOL + '/f', 'files-changes', *args, '--changes', 1000, '--name', POOL + '/f@b',
                            '--guid', 2000, '--from', 1000)
        self.row('receive of 1000 changed files of these', change.wall * 1000, 'ms')
        inc = self.drained(melt, '-i', '@a', POOL + '/f@b')
        self.row('send of 1000 changed files of these', inc.wall * 1000, 'ms')
        melt.close()

    def changes(self):
        """The same 1,000 changed blocks cost the same in a small and in a large dataset. (If they were spread over all
        of the large one, they would be in more leaves and cost more.)"""
        melt, times = self.home('changes'), {}
        for gib in (1, self.size['sparse']):
            # the same density of blocks: the large one has proportionally more of them
            args = ('--size', '%dG' % gib, '--block', '8K', '--every', 16)
            name = '%s/v%d' % (POOL, gib)
            self.piped(melt, name, 'volume', *args, '--guid', gib * 10)
            self.piped(melt, name, 'volume-changes', *args, '--changes', 1000, '--within', '1G', '--name', 'bench/v@b',
                       '--guid', gib * 10 + 1, '--from', gib * 10)
            self.drained(melt, '-i', '@a', name + '@b')
            times[gib] = min(self.drained(melt, '-i', '@a', name + '@b').wall for _ in range(5))
        small, large = times[1], times[self.size['sparse']]
        self.row('send of 1000 changed blocks of %d GiB' % self.size['sparse'], large * 1000, 'ms', small * 1000,
                 'ms of 1 GiB', large / small, 2, at_most=True, firm=False)
        melt.close()

    def snapshots(self):
        """Many snapshots of one dataset."""
        count = self.size['snapshots']
        melt = self.home('snapshots')
        self.piped(melt, POOL + '/v', 'volume', '--size', '8M')
        last = []
        for n in range(1, count):
            path = self.stream('empty', 'empty', '--volume', '--guid', 1000 + n, '--from', 999 + n, '--name',
                               'bench/v@s%d' % n)
            got = self.run(melt, 'receive', '-u', POOL + '/v', stdin=path)
            if n >= count - 50:
                last.append(got.wall)
        self.row('empty incremental on %d snapshots (best)' % count, min(last) * 1000, 'ms', limit=10, at_most=True,
                 firm=False)
        self.row('empty incremental on %d snapshots (median)' % count, sorted(last)[len(last) // 2] * 1000, 'ms')
        listed = min(self.run(melt, 'list', '-Hp', '-t', 'snapshot', '-r', POOL).wall for _ in range(3))
        self.row('list of %d snapshots' % count, listed, 's', limit=1, at_most=True)
        melt.close()

    def pool(self):
        """A pool with a hundred datasets that have many snapshots each, through the `zfs` command."""
        each, datasets = self.size['each'], ['%s/d%02d' % (POOL, n) for n in range(100)]
        total = each * len(datasets)
        melt = self.home('pool')
        for dataset in datasets:
            self.run(melt, 'zfs', 'create', dataset)
        hour, begin = datetime.timedelta(hours=1), datetime.datetime(2020, 1, 1)
        names = [(begin + n * hour).strftime('autosnap_%Y-%m-%d_%H:%M:%S_old') for n in range(each)]
        for name in names:
            self.run(melt, 'zfs', 'snapshot', *['%s@%s' % (dataset, name) for dataset in datasets])
        self.run(melt, 'zfs', 'create', POOL + '/few')
        self.run(melt, 'zfs', 'snapshot', POOL + '/few@one')
        rows = (('zfs list -t snapshot', ('list', '-t', 'snapshot'), 1, 's', 1),
                ('zfs get -Hpd 1 of a dataset with one', ('get', '-Hpd', '1', 'guid,creation', '-t', 'snapshot',
                                                          POOL + '/few'), 1000, 'ms', 20))
        for name, words, scale, unit, limit in rows:
            best = min(self.run(melt, 'zfs', *words).wall for _ in range(5))
            self.row('%s, %d snapshots in the pool' % (name, total), best * scale, unit, limit=limit, at_most=True)
        policy = os.path.join(melt.top, 'policy.toml')
        with open(policy, 'w') as f:
            f.write('[dataset.%s]\nrecursive = true\nautosnap = false\ncron.old = { at = "0 * * * *", keep = 10 }\n'
                    % POOL)
        plans = [self.run(melt, 'policy', 'plan', '--config', policy) for _ in range(3)]
        self.row('policy plan, %d snapshots in the pool' % total, min(plan.wall for plan in plans), 's', limit=2,
                 at_most=True)
        self.row('policy plan, memory', max(plan.rss for plan in plans) / MIB, 'MiB', limit=300, at_most=True)
        gone = each // 10
        wall = self.run(melt, 'zfs', 'destroy', '-r', '%s@%s%%%s' % (POOL, names[0], names[gone - 1])).wall
        self.row('zfs destroy of %d of them' % (gone * len(datasets)), wall, 's', limit=5, at_most=True)
        melt.close()

    def imports(self):
        """Repeated runs of `import`."""
        imports.unchanged(self)
        imports.large(self)

    def syncs(self):
        """`sync` over a link with delay."""
        syncs.many(self)
        syncs.directories(self)
        syncs.beside_syncoid(self)

    def replicas(self):
        """First and later copies of trees, compared with other programs."""
        replicas.measure(self)

    def volumes(self):
        """A volume over NBD, compared with a qcow2 image."""
        volumes.measure(self, self.size['volume'], self.size['served'])

    def objects(self):
        """Requests and bytes of a pool in an object store."""
        objects.measure(self, self.size['objects'])

    def parity(self):
        """`receive` into a pool with parity, and into one without."""
        size, percent = self.size['parity'], 5
        path = self.stream('parity', 'volume', '--size', size)
        warm(path)
        times, cpu, taken = {}, {}, {}
        for turn in range(max(2, self.size['repeats'] - 2)):
            for parity in (0, percent):
                melt = Snowmelt(self.binary, os.path.join(self.dir, 'parity%d-%d' % (parity, turn)))
                melt.ok('pool', 'create', '-o', 'parity=%d%%' % parity, POOL)
                got = self.run(melt, 'receive', '-u', POOL + '/v', stdin=path)
                times.setdefault(parity, []).append(got.wall)
                cpu.setdefault(parity, []).append(got.cpu)
                taken[parity] = disk_usage(melt.top)
                melt.close()
        name, scale = 'receive with parity=%d%%' % percent, size / GIB
        self.row(name + ', per GiB', min(times[percent]) / scale, 's', min(times[0]) / scale, 's without',
                 min(times[percent]) / min(times[0]))
        self.row(name + ', CPU per GiB', min(cpu[percent]) / scale, 's', min(cpu[0]) / scale, 's without',
                 min(cpu[percent]) / min(cpu[0]))
        self.row(name + ', on disk', taken[percent] / MIB, 'MiB', taken[0] / MIB, 'MiB without',
                 taken[percent] / taken[0], 1.06, at_most=True)
        os.remove(path)

    def encryption(self):
        """`receive` into encrypted pools and `send` from them, compared with an unencrypted pool."""
        size = self.size['encryption']
        path = self.stream('encryption', 'volume', '--size', size)
        warm(path)
        key = os.path.join(self.dir, 'key')
        with open(key, 'wb') as file:
            file.write(bytes(range(32)))
        suites = ('', 'xchacha20-poly1305', 'aes-256-gcm-siv')
        times = {}
        for turn in range(max(2, self.size['repeats'] - 2)):
            for suite in suites:
                melt = Snowmelt(self.binary, os.path.join(self.dir, 'encryption%s-%d' % (suite, turn)))
                options = ('--encrypt=' + suite, '--key-file', key) if suite else ()
                melt.ok('pool', 'create', *options, POOL)
                got = self.run(melt, 'receive', '-u', POOL + '/v', stdin=path)
                times.setdefault(('receive', suite), []).append((got.wall, got.cpu))
                snapshot = melt.ok('list', '-H', '-o', 'name', '-t', 'snapshot').out.decode().split()[-1]
                got = self.run(melt, 'send', snapshot)
                times.setdefault(('send', suite), []).append((got.wall, got.cpu))
                melt.close()
        scale = size / GIB
        for verb in ('receive', 'send'):
            for suite in suites[1:]:
                for at, what in enumerate(('per GiB', 'CPU per GiB')):
                    ours, plain = (min(turn[at] for turn in times[verb, which]) for which in (suite, ''))
                    self.row('%s, %s, %s' % (verb, suite, what), ours / scale, 's', plain / scale, 's without',
                             ours / plain)
        os.remove(path)

    def refill(self):
        """Pools that are filled repeatedly."""
        refills.measure(self, *self.size['refill'])

    def indexes(self):
        """File lists of `serve rsync` from an index, and of `rsync --daemon`."""
        indexes.measure(self, *self.size['indexed'])

    def rsync(self):
        """Content over rsync's protocol, and a renamed directory."""
        rsyncs.measure(self, timed, POOL, *self.size['rsync'])

    def many(self):
        """Many filesystems, mounted by one process."""
        if os.geteuid() != 0:
            raise SystemExit('many mounts are measured by root, with /dev/fuse')
        many.measure(self, *self.size['many'])

    def soak(self):
        """Mixed work on a mounted pool, and the memory of the process that serves it."""
        if os.geteuid() != 0:
            raise SystemExit('mixed work is measured by root, with /dev/fuse')
        soak.measure(self, *self.size['soak'])

    def mount(self):
        """A filesystem through FUSE, compared with a directory through a FUSE filesystem that only passes everything
        on."""
        if os.geteuid() != 0 or not os.access('/dev/fuse', os.R_OK | os.W_OK):
            raise SystemExit('mounts are measured by root, with /dev/fuse')
        tops = [os.path.join(self.dir, name) for name in ('mount', 'passthrough')]
        ours, peer = Mounted(self.binary, tops[0]), mounts.Passthrough(os.path.join(self.tools, 'passthrough'), tops[1])
        try:
            mounts.measure(self, ours, peer, self.size['mount'], self.size['names'], self.size['repeats'])
        finally:
            ours.close()
            peer.close()


NAMES = ('verify', 'receive', 'send', 'huge', 'files', 'changes', 'snapshots', 'pool', 'mount', 'many', 'soak',
         'imports', 'syncs', 'replicas', 'volumes', 'objects', 'parity', 'encryption', 'refill', 'indexes', 'rsync')


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--quick', action='store_true', help='small sizes, for CI')
    parser.add_argument('--only', action='append', choices=NAMES, help='may be repeated')
    parser.add_argument('--json', default=os.path.join(TARGET, 'bench.json'),
                        help='where the figures go (default: %(default)s)')
    parser.add_argument('--dir',
                        help='where pools and streams are made: up to 45 GiB (default: the temporary directory)')
    args = parser.parse_args()
    bench = Bench(args)
    print('%s, %d CPUs, linux %s, %s sizes\n' % (cpu(), os.cpu_count(), platform.release(), 'quick' if args.quick
                                                 else 'full'))
    try:
        for name in NAMES:
            if not args.only or name in args.only:
                getattr(bench, name)()
    finally:
        shutil.rmtree(bench.dir, ignore_errors=True)
    os.makedirs(os.path.dirname(os.path.abspath(args.json)), exist_ok=True)
    with open(args.json, 'w') as f:
        json.dump(dict(cpu=cpu(), cpus=os.cpu_count(), linux=platform.release(), quick=args.quick, sizes=bench.size,
                       rows=bench.rows, table=bench.table), f, indent=1)
    missed = [r['name'] for r in bench.rows if r['met'] is False]
    print('\n%d limits met, %d missed%s' % (sum(r['met'] is True for r in bench.rows), len(missed),
                                            ''.join('\n  ' + m for m in missed)))
    return 1 if missed else 0


def cpu():
    with open('/proc/cpuinfo') as f:
        return next((s.split(':', 1)[1].strip() for s in f if s.startswith('model name')), platform.machine())


if __name__ == '__main__':
    sys.exit(main())
