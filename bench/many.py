#!/usr/bin/env python3
"""Many filesystems with the `zfs` command: created, mounted, written, snapshotted, unmounted and destroyed.

usage, as root: bench/many.py BINARY [FILESYSTEMS [SNAPSHOTS]]

Prints the times of each step's commands (median, slowest), and the memory and threads of the process that serves the
mounts. Everything is in a temporary directory."""
import os
import shutil
import subprocess
import sys
import tempfile
import time

# Limit for caches, dirty data and transfers when rows are judged, in MiB.
BUDGET_MIB = 64


class World:
    """A pool `many` in a directory, and the shims for it."""

    def __init__(self, binary, directory=None):
        self.binary = os.path.abspath(binary)
        self.top = tempfile.mkdtemp(prefix='snowmelt-many-', dir=directory)
        self.mnt = os.path.join(self.top, 'mnt')
        os.mkdir(self.mnt)
        self.env = {'PATH': os.environ['PATH'], 'HOME': self.top, 'XDG_RUNTIME_DIR': self.top,
                    'XDG_CONFIG_HOME': os.path.join(self.top, 'config'),
                    'SNOWMELT_AUTOMOUNT': 'on'}

    def run(self, *words):
        """Seconds that a command took."""
        begun = time.monotonic()
        subprocess.run([self.binary, *words], env=self.env, cwd=self.top, check=True, stdin=subprocess.DEVNULL,
                       stdout=subprocess.DEVNULL)
        return time.monotonic() - begun

    def owner(self):
        """Memory (KiB) and threads of the background process."""
        for pid in filter(str.isdigit, os.listdir('/proc')):
            try:
                with open(f'/proc/{pid}/environ', 'rb') as f:
                    ours = b'HOME=' + self.top.encode() in f.read().split(b'\0')
                with open(f'/proc/{pid}/status') as f:
                    status = dict(line.split(':', 1) for line in f)
            except OSError:
                continue
            if ours and status['Name'].strip() != 'python3':
                return int(status['VmRSS'].split()[0]), int(status['Threads'])
        return 0, 0

    def close(self):
        # The pool no longer exists if everything succeeded.
        subprocess.run([self.binary, 'zpool', 'destroy', '-f', 'many'], env=self.env, check=False,
                       stderr=subprocess.DEVNULL)
        shutil.rmtree(self.top, ignore_errors=True)


def median(times):
    return sorted(times)[len(times) // 2]


def steps(world, count, snapshots):
    """The steps, the times of each step's commands, and the owner's memory and threads after it."""
    def step(name, times):
        return (name, times, *world.owner())

    image = os.path.join(world.top, 'image')
    with open(os.open(image, os.O_CREAT | os.O_WRONLY, 0o600), 'wb') as f:
        f.truncate(8 << 30)
    yield step('zpool create', [world.run('zpool', 'create', '-O', f'mountpoint={world.mnt}', 'many', image)])
    names = [f'many/f{number}' for number in range(count)]
    yield step('zfs create', [world.run('zfs', 'create', name) for name in names])

    def write(number):
        begun = time.monotonic()
        with open(os.path.join(world.mnt, f'f{number}', 'file'), 'wb') as f:
            f.write(os.urandom(64 << 10))
        return time.monotonic() - begun

    yield step('64 KiB written', [write(number) for number in range(count)])
    yield step('zfs snapshot -r', [world.run('zfs', 'snapshot', '-r', f'many@s{n}') for n in range(snapshots)])
    few = names[:: max(1, count // 50)]
    yield step('zfs unmount', [world.run('zfs', 'unmount', name) for name in few])
    yield step('zfs mount', [world.run('zfs', 'mount', name) for name in few])
    yield step('zfs list -r -t all', [world.run('zfs', 'list', '-r', '-t', 'all', 'many')])
    yield step('zfs destroy -r of one', [world.run('zfs', 'destroy', '-r', name) for name in few])
    yield step('zpool destroy', [world.run('zpool', 'destroy', 'many')])


def measure(bench, count, snapshots):
    """Rows for `run.py`. The budget of the process is subtracted, because caches may be full."""
    world = World(bench.binary, bench.dir)
    world.env['SNOWMELT_MEMORY'] = f'{BUDGET_MIB}M'
    try:
        done = {name: (times, memory / 1024, threads)
                for name, times, memory, threads in steps(world, count, snapshots)}
    finally:
        world.close()
    empty, full = done['zpool create'][1], max(memory for _, memory, _ in done.values())
    bench.row('many: mount one more', median(done['zfs mount'][0]) * 1000, 'ms', limit=50, at_most=True, firm=False)
    bench.row('many: memory for all mounts', max(0.0, full - empty - BUDGET_MIB), 'MiB', limit=64, at_most=True)
    bench.row('many: memory for each mount', max(0.0, (done['zfs create'][1] - empty) / count), 'MiB', limit=0.5,
              at_most=True)
    bench.row('many: threads', max(threads for _, _, threads in done.values()), 'count', limit=40, at_most=True)


def main():
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 1000
    snapshots = int(sys.argv[3]) if len(sys.argv) > 3 else 10
    world = World(sys.argv[1])
    try:
        for name, times, memory, threads in steps(world, count, snapshots):
            print(f'{name:<24} {len(times):5} times  median {median(times) * 1000:7.1f} ms  '
                  f'slowest {max(times) * 1000:7.1f} ms  '
                  f'owner {memory / 1024:7.1f} MiB, {threads} threads', flush=True)
    finally:
        world.close()


if __name__ == '__main__':
    main()
