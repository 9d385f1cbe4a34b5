#!/usr/bin/env python3
"""Many filesystems with the words of ZFS: created, mounted, written, snapshotted, unmounted and destroyed.

usage, as root: bench/many.py BINARY [FILESYSTEMS [SNAPSHOTS]]

Prints how long the commands of each step took (median, slowest) and what the process that serves the mounts takes:
memory and threads. Everything is in a directory of its own."""
import os
import shutil
import subprocess
import sys
import tempfile
import time


class World:
    """A pool `many` in a directory, and the shims that work on it."""

    def __init__(self, binary):
        self.binary = os.path.abspath(binary)
        self.top = tempfile.mkdtemp(prefix='snowmelt-many-')
        self.mnt = os.path.join(self.top, 'mnt')
        os.mkdir(self.mnt)
        self.env = {'PATH': os.environ['PATH'], 'HOME': self.top, 'XDG_RUNTIME_DIR': self.top,
                    'SNOWMELT_AUTOMOUNT': 'on'}

    def run(self, *words):
        """Seconds that a command took."""
        begun = time.monotonic()
        subprocess.run([self.binary, *words], env=self.env, cwd=self.top, check=True, stdin=subprocess.DEVNULL,
                       stdout=subprocess.DEVNULL)
        return time.monotonic() - begun

    def owner(self):
        """Memory (KiB) and threads of the process in the background."""
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
        subprocess.run([self.binary, 'zpool', 'destroy', '-f', 'many'], env=self.env, check=False)
        shutil.rmtree(self.top, ignore_errors=True)


def step(name, times, world):
    times = sorted(times)
    memory, threads = world.owner()
    print(f'{name:<34} median {times[len(times) // 2] * 1000:7.1f} ms  slowest {times[-1] * 1000:7.1f} ms  '
          f'owner {memory / 1024:7.1f} MiB, {threads} threads', flush=True)


def main():
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 1000
    snapshots = int(sys.argv[3]) if len(sys.argv) > 3 else 10
    world = World(sys.argv[1])
    try:
        image = os.path.join(world.top, 'image')
        with open(image, 'wb') as f:
            f.truncate(8 << 30)
        step('zpool create', [world.run('zpool', 'create', '-O', f'mountpoint={world.mnt}', 'many', image)], world)
        names = [f'many/f{number}' for number in range(count)]
        step(f'zfs create, {count} times', [world.run('zfs', 'create', name) for name in names], world)

        def write(number):
            begun = time.monotonic()
            with open(os.path.join(world.mnt, f'f{number}', 'file'), 'wb') as f:
                f.write(os.urandom(64 << 10))
            return time.monotonic() - begun

        step('64 KiB written in each', [write(number) for number in range(count)], world)
        taken = [world.run('zfs', 'snapshot', '-r', f'many@s{number}') for number in range(snapshots)]
        step(f'zfs snapshot -r, {snapshots} times', taken, world)
        few = names[:: max(1, count // 50)]
        step('zfs unmount', [world.run('zfs', 'unmount', name) for name in few], world)
        step('zfs mount', [world.run('zfs', 'mount', name) for name in few], world)
        step('zfs list -r -t all', [world.run('zfs', 'list', '-r', '-t', 'all', 'many')], world)
        step('zfs destroy -r of one', [world.run('zfs', 'destroy', '-r', name) for name in few], world)
        step('zpool destroy', [world.run('zpool', 'destroy', 'many')], world)
    finally:
        world.close()


if __name__ == '__main__':
    main()
