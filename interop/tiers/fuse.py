"""A filesystem mounted through FUSE, under workloads that have broken filesystems before, and with sudden death of the
server."""
import errno
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

from . import corpus, manifests
from .corpus import ROOT
from .journal import Writer
from .mounted import Mounted
from .report import Failed
from .snowmelt import Snowmelt
from .vm import VM

TOOLS = os.path.join(os.environ.get('CARGO_TARGET_DIR', os.path.join(ROOT, 'target')), 'tools', 'bin')
PJDFSTEST_CONFIG = os.path.join(ROOT, 'interop', 'pjdfstest.toml')
# As many as ext4 passes, minus one (birth times through FUSE_STATX).
PJDFSTEST_PASSED = 382
# A crate of this repository with few dependencies.
BUILT = 'snowmelt-zpl'
QUOTA_BYTES = 24 << 20


class Sizes:
    def __init__(self, large):
        self.fsx_ops, self.fsx_phases = (100_000, 8) if large else (9_000, 3)
        self.fio_bytes = 1 << 30 if large else 64 << 20
        self.files = 1_000_000 if large else 20_000
        self.kills, self.lives = (5, 3) if large else (1, 2)
        self.full_bytes = 512 << 20 if large else 160 << 20


class Fuse:
    def __init__(self, report, binary, scratch, sizes):
        self.report, self.binary, self.sizes = report, binary, sizes
        self.top = os.path.join(scratch, 'fuse')

    # ---- running -------------------------------------------------------------------------

    def run(self):
        for name in ('pjdfstest', 'fsx', 'fio', 'build', 'tree', 'full', 'kill', 'user', 'streams'):
            full = 'fuse ' + name
            if not self.report.wants(full):
                continue
            top = os.path.join(self.top, name)
            os.makedirs(top)
            try:
                getattr(self, name)(full, top)
            except (Failed, subprocess.TimeoutExpired, OSError) as e:
                self.report.check(full, e)
            finally:
                shutil.rmtree(top, ignore_errors=True)

    def on_mount(self, name, top, work, **kw):
        """Runs `work` on a fresh filesystem. Afterwards it must unmount, and `check` must pass."""
        mounted = Mounted(self.binary, top, **kw)
        try:
            mounted.mount()
            work(mounted)
            self.report.check(name + ': check while mounted', mounted.checked())
            mounted.unmount()
            self.report.check(name + ': check', mounted.checked())
        finally:
            mounted.close()

    def command(self, name, *args, timeout=1800, cwd=None, env=None):
        """Runs an external program that must succeed. Returns its output."""
        done = subprocess.run(args, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=timeout)
        said = done.stdout.decode('utf-8', 'replace')
        self.report.check(name, None if done.returncode == 0
                          else '%s gave %d:\n%s' % (args[0], done.returncode, said[-4000:]))
        return said

    # ---- stream files --------------------------------------------------------------------

    def streams(self, name, top):
        """Mounts every full stream of the corpus and compares it with its manifest from ZFS."""
        cases = corpus.load(corpus.locate())
        melt, mounted = Snowmelt(self.binary, os.path.join(top, 'home')), os.path.join(top, 'mnt')
        os.makedirs(mounted)
        total = 0
        for case in cases:
            for file, info in sorted(case.streams.items()):
                truth = case.by_guid.get(info['toguid'])
                # Redacted streams are left out, because their manifests contain gaps. Streams with names of more than
                # 255 bytes are left out too: Linux does not support them in FUSE.
                not_mounted = {'RAW', 'REDACTED', 'LONGNAME'} & {*info['features']}
                if case.is_damaged() or info['compound'] or info['fromguid'] != '0' or not truth or not_mounted:
                    continue
                what, path = '%s: %s/%s' % (name, case.name, file), case.path(file)
                with open(truth[0], encoding='utf-8') as f:
                    is_volume = '"type":"volume"' in f.readline()
                done = melt.run('mount', path, mounted)
                if 'RESUMING' in info['features'] or is_volume:
                    self.report.check(what + ': refused', None if done.status == 1 and done.err
                                      and not os.listdir(mounted) else str(done))
                    continue
                total += 1
                if done.status:
                    self.report.check(what, str(done))
                    continue
                try:
                    said = subprocess.run([sys.executable, os.path.join(ROOT, 'interop', 'vm', 'manifest.py'), 'fs',
                                           mounted],
                                          stdout=subprocess.PIPE, timeout=1800)
                    self.report.check(what, 'it cannot be gone through' if said.returncode
                                      else manifests.difference(truth[0], said.stdout))
                finally:
                    melt.ok('unmount', mounted)
        self.report.check('%s: %d streams were compared' % (name, total), None if total > 3 else 'too few')

    # ---- suites --------------------------------------------------------------------------

    def pjdfstest(self, name, top):
        def work(mounted):
            os.chmod(mounted.dir, 0o755)
            done = subprocess.run([tool('pjdfstest'), '-c', PJDFSTEST_CONFIG, '-p', mounted.dir], cwd=top,
                                  stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=1800)
            # Lines of passed tests are left out.
            said = '\n'.join(line for line in done.stdout.decode('utf-8', 'replace').split('\n')
                             if not line.endswith((' ok', ' skipped')))
            found = re.search(r'(\d+) failed, (\d+) skipped, (\d+) passed', said)
            why = None if found and int(found[1]) == 0 and int(found[3]) >= PJDFSTEST_PASSED else said[:4000]
            self.report.check('%s: %s' % (name, found[0] if found else 'no summary'), why)
        # The tests bind sockets below this directory. Their paths must have at most 107 bytes.
        with tempfile.TemporaryDirectory(prefix='pjd') as top:
            os.chmod(top, 0o755)
            self.on_mount(name, top, work)

    def fsx(self, name, top):
        """Works in phases. After each phase, a rollback must bring back the contents from before it."""
        def work(mounted):
            ops = self.sizes.fsx_ops // self.sizes.fsx_phases
            for phase in range(self.sizes.fsx_phases):
                what = '%s phase %d' % (name, phase)
                before = manifest(mounted.dir, os.path.join(top, 'before'))
                mounted.melt.ok('snapshot', '%s@phase%d' % (mounted.dataset, phase))
                with Snapshots(mounted, 'fsx%d-' % phase):
                    self.command('%s: %d operations beside snapshots' % (what, ops), tool('fsx'), '-q', '-N', str(ops),
                                 '-S', str(phase + 1),
                                 '-P', top, mounted.path('file%d' % phase), cwd=top)
                self.report.check(what + ': the snapshot holds what was',
                                  same(before, mounted.path('.zfs/snapshot/phase%d' % phase)))
                if phase % 2 == 0:
                    mounted.melt.ok('rollback', '-r', '%s@phase%d' % (mounted.dataset, phase))
                    self.report.check(what + ': rolled back', same(before, mounted.dir))
        self.on_mount(name, top, work)

    def fio(self, name, top):
        def small(share):
            return '--size=%d' % (self.sizes.fio_bytes // share)

        jobs = {
            'sequential': ['--rw=write', '--bs=1m', '--fsync=16'],
            'random': ['--rw=randrw', '--bsrange=512-128k', '--bs_unaligned=1', '--fsync=64', small(2)],
            'synced': ['--rw=randwrite', '--bs=4k', '--sync=dsync', small(24)],
            # Each synced page costs a whole record, so far more is written than requested.
            'mmap': ['--rw=randwrite', '--bs=4k', '--ioengine=mmap', '--fsync=256', small(8)],
            'direct': ['--rw=randwrite', '--bs=16k', '--direct=1', '--ioengine=libaio', '--iodepth=16', small(2)],
        }

        def work(mounted):
            args = {job: fio_args(mounted, job, self.sizes.fio_bytes) + jobs[job] for job in jobs}
            for job in jobs:
                self.command('%s %s' % (name, job), *args[job], '--do_verify=1', cwd=top)
            mounted.remount()
            for job in jobs:
                self.command('%s %s after a remount' % (name, job), *args[job], '--verify_only=1', cwd=top)
        self.on_mount(name, top, work)

    def build(self, name, top):
        def work(mounted):
            source = mounted.path('snowmelt')
            self.command(name + ': git clone', 'git', 'clone', '-q', ROOT, source, cwd=top)
            self.command(name + ': git fsck', 'git', '-C', source, 'fsck', '--full', cwd=top)
            env = dict(os.environ, CARGO_TARGET_DIR=mounted.path('target'))
            env.pop('CARGO_BUILD_TARGET_DIR', None)
            self.command('%s: cargo build -p %s' % (name, BUILT), 'cargo', 'build', '--locked', '-p', BUILT, cwd=source,
                         env=env)
            mounted.remount()
            said = self.command(name + ': nothing to build again', 'cargo', 'build', '--locked', '-p', BUILT,
                                cwd=source, env=env)
            self.report.check(name + ': times survive', None if 'Compiling' not in said else said)
            status = self.command(name + ': git status', 'git', '-C', source, 'status', '--porcelain', cwd=top)
            self.report.check(name + ': the work tree is clean', status or None)
        self.on_mount(name, top, work)

    def tree(self, name, top):
        """Half of the files in one directory, the others in many."""
        count = self.sizes.files

        def timed(what, work):
            begun = time.monotonic()
            work()
            took = time.monotonic() - begun
            self.report.check('%s: %d files %s, %.1f s, %d/s' % (name, count, what, took, count / max(took, 0.001)),
                              None)

        def work(mounted):
            flat, deep = mounted.make_dir('flat'), mounted.make_dir('deep')
            paths = ['%s/file number %d' % (flat, n) for n in range(count // 2)]
            paths += ['%s/%d/%d' % (deep, n // 1000, n) for n in range(count - count // 2)]
            timed('created', lambda: create(deep, paths))
            mounted.remount()
            timed('listed', lambda: expect(count, sum(len(files) for _, _, files in os.walk(mounted.dir))))
            timed('looked at', lambda: expect(2 * count, sum(os.lstat(p).st_nlink + os.path.isfile(p) for p in paths)))
            mounted.melt.ok('snapshot', mounted.dataset + '@all')
            timed('deleted', lambda: [os.unlink(p) for p in paths])
            for where, dirs, files in os.walk(mounted.dir, topdown=False):
                expect(0, len(files))
                if where != mounted.dir:
                    os.rmdir(where)
            snapshot = mounted.path('.zfs/snapshot/all/flat')
            expect(count // 2, len(os.listdir(snapshot)))
            mounted.melt.ok('destroy', mounted.dataset + '@all')
        self.on_mount(name, top, work)

    # ---- limits --------------------------------------------------------------------------

    def full(self, name, top):
        """A pool of a fixed size runs full in the middle of writing."""
        image = os.path.join(top, 'image')
        with open(image, 'wb') as f:
            f.truncate(self.sizes.full_bytes)

        def work(mounted):
            for turn in range(2):
                written, why = fill(mounted.make_dir('turn%d' % turn), turn)
                self.report.check('%s turn %d: %d MiB, then %s' % (name, turn, sum(written.values()) >> 20, why),
                                  None if why == 'ENOSPC' else 'it should be ENOSPC')
                self.report.check('%s turn %d: nothing that was written is lost' % (name, turn), unlike(written, turn))
                mounted.remount()
                self.report.check('%s turn %d: nor after a remount' % (name, turn), unlike(written, turn))
                for path in written:
                    os.unlink(path)
                for path in os.listdir(mounted.path('turn%d' % turn)):
                    os.unlink(mounted.path('turn%d' % turn, path))
                mounted.remount()
        self.on_mount(name, top, work, pool=[image])

        def limited(mounted):
            for limit in ('refquota', 'quota'):
                mounted.melt.ok('set', '%s=%d' % (limit, QUOTA_BYTES), mounted.dataset)
                written, why = fill(mounted.make_dir(limit), 7)
                total = sum(written.values())
                self.report.check('%s: %s of %d MiB: %d MiB, then %s'
                                  % (name, limit, QUOTA_BYTES >> 20, total >> 20, why),
                                  None if why == 'EDQUOT' and total > QUOTA_BYTES // 2
                                  else 'it should be EDQUOT, and later')
                self.report.check('%s: %s: nothing that was written is lost' % (name, limit), unlike(written, 7))
                for path in os.listdir(mounted.path(limit)):
                    os.unlink(mounted.path(limit, path))
                mounted.melt.ok('set', limit + '=none', mounted.dataset)
        self.on_mount(name, os.path.join(top, 'quota'), limited)

    def kill(self, name, top):
        """Kills the server in the middle of each workload. In parallel, numbered changes are made and synced."""
        for turn in range(self.sizes.kills):
            for load in ('fsx', 'fio', 'mmap', 'git', 'tree', 'snapshots'):
                where = os.path.join(top, '%s%d' % (load, turn))
                os.makedirs(where)
                self.killed('%s during %s %d' % (name, load, turn), where, load, 100 * turn + len(load))

    def killed(self, name, top, load, seed):
        mounted = Mounted(self.binary, top)
        writers, rnd = [], random.Random(seed)
        try:
            for life in range(self.sizes.lives):
                mounted.mount()
                for number, writer in enumerate(writers):
                    self.report.check('%s: what was there before death %d' % (name, number + 1), writer.lost())
                writer = Writer(mounted.make_dir('journal%d' % life), seed + 1000 * life)
                sync(mounted.dir)
                thread = threading.Thread(target=writer.run)
                busy = self.load(load, mounted, top, life)
                thread.start()
                time.sleep(rnd.uniform(0.5, 3.5))
                mounted.kill()
                thread.join(60)
                busy.stop()
                if thread.is_alive():
                    raise Failed('a write did not end with the server')
                if writer.error is None or not writer.synced:
                    raise Failed('the writer was not interrupted (%s), or never synced' % writer.error)
                writers.append(writer)
                # A file that changes after it was checked is the subject of another round.
                what = '%s: check after death %d (%d changes, %d synced)'
                self.report.check(what % (name, life + 1, writer.done, writer.synced), mounted.checked())
            mounted.mount()
            for number, writer in enumerate(writers):
                self.report.check('%s: what was there before death %d, at the end' % (name, number + 1), writer.lost())
            mounted.unmount()
            self.report.check(name + ': check', mounted.checked())
        finally:
            mounted.close()

    def load(self, load, mounted, top, life):
        if load == 'snapshots':
            return Snapshots(mounted, 'kill%d-' % life).begin()
        where = mounted.make_dir('load%d' % life)
        if load == 'fsx':
            args = [tool('fsx'), '-q', '-S', str(life + 1), '-P', top, os.path.join(where, 'file')]
        elif load in ('fio', 'mmap'):
            engine = ['--ioengine=mmap'] if load == 'mmap' else []
            args = ['fio', '--name=load', '--directory=' + where, '--rw=randwrite', '--bs=32k', '--size=64m',
                    '--fsync=100', '--time_based',
                    '--runtime=60', *engine]
        elif load == 'git':
            args = ['git', 'clone', '-q', ROOT, os.path.join(where, 'clone')]
        else:
            args = [sys.executable, '-c',
                    'import sys\nn = 0\nwhile True:\n n += 1\n open("%s/%d" % (sys.argv[1], n), "w").write(str(n))',
                    where]
        return Load(args, top)

    # ---- an ordinary user ----------------------------------------------------------------

    def user(self, name, top):
        """Mounts without root, through fusermount3."""
        os.chmod(top, 0o711)
        work = os.path.join(top, 'nobody')
        os.makedirs(work)
        shutil.chown(work, 'nobody', 'nogroup')
        path = os.path.join(ROOT, 'interop', 'tiers', 'as_user.py')
        self.command(name, 'setpriv', '--reuid=nobody', '--regid=nogroup', '--clear-groups', sys.executable, path,
                     self.binary, work, timeout=120)


class Load:
    """A program that runs until it is stopped, or until its files disappear."""

    def __init__(self, args, cwd):
        self.child = subprocess.Popen(args, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                      stderr=subprocess.DEVNULL,
                                      start_new_session=True)

    def stop(self):
        # Kills its children too: fio's jobs do not end with fio.
        os.killpg(self.child.pid, signal.SIGKILL)
        self.child.wait(60)


class Snapshots:
    """Takes and destroys snapshots all the time."""

    def __init__(self, mounted, prefix):
        self.mounted, self.prefix, self.ended = mounted, prefix, threading.Event()
        self.thread = threading.Thread(target=self.go)

    def go(self):
        number = 0
        while not self.ended.wait(0.05):
            name = '%s@%s%d' % (self.mounted.dataset, self.prefix, number)
            taken = self.mounted.melt.run('snapshot', name).status == 0
            if taken and number % 3:
                self.mounted.melt.run('destroy', name)
            number += 1

    def begin(self):
        self.thread.start()
        return self

    def stop(self):
        self.ended.set()
        self.thread.join()

    __enter__ = begin

    def __exit__(self, *_):
        self.stop()


def tool(name):
    for path in (os.path.join(TOOLS, name), shutil.which(name)):
        if path and os.access(path, os.X_OK):
            return path
    raise Failed('%s is not there: cargo install --root %s %s' % (name, os.path.dirname(TOOLS), name))


def fio_args(mounted, job, size):
    return ['fio', '--name=' + job, '--directory=' + mounted.dir, '--size=%d' % size, '--verify=crc32c',
            '--verify_fatal=1', '--randseed=7',
            '--verify_state_save=0', '--group_reporting']


def manifest(directory, to):
    """The manifest of a directory, without values that reading changes."""
    said = subprocess.run([sys.executable, os.path.join(VM, 'manifest.py'), 'fs', directory], stdout=subprocess.PIPE,
                          check=True).stdout
    with open(to, 'w', encoding='utf-8', errors='surrogateescape') as f:
        f.write('\n'.join(plain(said)))
    return to


def plain(said):
    lines = []
    for line in said.decode('utf-8', 'surrogateescape').split('\n'):
        if line.strip():
            entry = json.loads(line)
            for key in ('atime', 'ino'):
                entry.pop(key, None)
            lines.append(json.dumps(entry))
    return lines


def same(truth, directory):
    said = subprocess.run([sys.executable, os.path.join(VM, 'manifest.py'), 'fs', directory], stdout=subprocess.PIPE,
                          check=True).stdout
    return manifests.difference(truth, plain(said))


def create(deep, paths):
    for n in range(0, len(paths), 2000):
        os.makedirs('%s/%d' % (deep, n // 2000), exist_ok=True)
    for path in paths:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))


def expect(want, got):
    if want != got:
        raise Failed('%d, should be %d' % (got, want))


def sync(directory):
    fd = os.open(directory, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def content(path, turn, size):
    """Incompressible content."""
    return random.Random('%s %d' % (os.path.basename(path), turn)).randbytes(size)


def fill(directory, turn):
    """Writes files until there is no space. Returns path -> acknowledged bytes, and the reason of the end."""
    written, number = {}, 0
    while True:
        path = os.path.join(directory, str(number))
        data, size = content(path, turn, 1 << 20), 0
        number += 1
        try:
            with open(path, 'wb', buffering=0) as f:
                while size < len(data):
                    size += f.write(data[size:size + 100_000])
                    written[path] = size
                if number % 8 == 0:
                    os.fsync(f.fileno())
        except OSError as e:
            return written, errno.errorcode.get(e.errno, str(e))


def unlike(written, turn):
    """The first file that does not contain the acknowledged data, or None."""
    for path, size in written.items():
        with open(path, 'rb') as f:
            got = f.read()
        if got != content(path, turn, 1 << 20)[:size]:
            return '%s: %d bytes, should be %d' % (path, len(got), size)
    return None


def run(report, binary, scratch, args):
    Fuse(report, binary, scratch, Sizes(args.large)).run()
