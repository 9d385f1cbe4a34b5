#!/usr/bin/env python3
"""Mixed work on one pool for some time, all in one process whose memory is sampled.

usage, as root: bench/soak.py BINARY [SECONDS [MEGABYTES]]

Five workers run in parallel until the time is over. Files are written, read and deleted in a mount. Datasets are copied
with `send | receive`. Snapshots are taken, listed, compared and destroyed. A directory is imported, restored and
synced. Filesystems are created, mounted and destroyed. Everything is in a temporary directory."""
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time

MIB = 1 << 20
BUDGET_MIB = 256
COPIES = 3              # copies at once
RETURN_SECONDS = 60     # maximum time until memory is returned to the system


class World:
    """A pool `soak`, and a process that has it mounted."""

    def __init__(self, binary, megabytes, directory=None):
        self.binary, self.bytes = os.path.abspath(binary), megabytes * MIB
        self.top = tempfile.mkdtemp(prefix='snowmelt-soak-', dir=directory)
        self.mnt, self.tree = os.path.join(self.top, 'mnt'), os.path.join(self.top, 'tree')
        os.mkdir(self.mnt)
        self.env = {'PATH': os.environ['PATH'], 'HOME': self.top, 'XDG_RUNTIME_DIR': self.top,
                    'XDG_CONFIG_HOME': os.path.join(self.top, 'config'), 'SNOWMELT_MEMORY': f'{BUDGET_MIB}M'}
        self.run('pool', 'create', 'soak', os.path.join(self.top, 'pool'))
        self.run('create', '-o', f'mountpoint={self.mnt}', 'soak/files')
        self.owner = subprocess.Popen([self.binary, 'mount', '--foreground', 'soak/files', self.mnt], env=self.env)
        while not os.path.ismount(self.mnt):
            if self.owner.poll() is not None:
                raise RuntimeError(f'mount ended with {self.owner.returncode}')
            time.sleep(0.05)

    def run(self, *words):
        done = subprocess.run([self.binary, *words], env=self.env, cwd=self.top, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        if done.returncode != 0:
            raise RuntimeError(f'{" ".join(words)} gave {done.returncode}: {done.stdout.decode()[-2000:]}')
        return done.stdout.decode()

    def copy(self, snapshot, target):
        send = subprocess.Popen([self.binary, 'send', '-p', snapshot], env=self.env, stdout=subprocess.PIPE)
        receive = subprocess.run([self.binary, 'receive', '-u', target], env=self.env, stdin=send.stdout, check=False)
        send.stdout.close()
        if (send.wait(), receive.returncode) != (0, 0):
            raise RuntimeError(f'send {snapshot} gave {send.returncode}, receive {target} gave {receive.returncode}')

    def memory(self):
        """Resident MiB, threads and open files of the process."""
        with open(f'/proc/{self.owner.pid}/status') as f:
            status = dict(line.split(':', 1) for line in f)
        descriptors = os.listdir(f'/proc/{self.owner.pid}/fd')
        return int(status['VmRSS'].split()[0]) / 1024, int(status['Threads']), len(descriptors)

    def close(self):
        subprocess.run([self.binary, 'unmount', '-f', 'soak/files'], env=self.env, check=False)
        try:
            self.owner.wait(60)
        except subprocess.TimeoutExpired:
            self.owner.kill()
        shutil.rmtree(self.top, ignore_errors=True)


def write_file(path, size, rng):
    """Writes a file of which half is incompressible."""
    with open(path, 'wb') as f:
        for at in range(0, size, MIB):
            piece = min(MIB, size - at)
            f.write(rng.randbytes(piece // 2) + b'snow' * ((piece - piece // 2 + 3) // 4))


def fill_tree(top, size, rng):
    shutil.rmtree(top, ignore_errors=True)
    for folder in range(20):
        os.makedirs(os.path.join(top, str(folder)))
        for number in range(20):
            write_file(os.path.join(top, str(folder), str(number)), size // 400, rng)


# ---- one turn of each worker -----------------------------------------------------------------

def files(world, rng, turn):
    """Files written, renamed, read back and deleted."""
    top = os.path.join(world.mnt, f'turn{turn % 4}')
    fill_tree(top, world.bytes // 4, rng)
    os.rename(os.path.join(top, '0'), os.path.join(top, 'renamed'))
    for folder, _, names in os.walk(top):
        for name in names:
            with open(os.path.join(folder, name), 'rb') as f:
                while f.read(MIB):
                    pass


def copies(world, rng, turn):
    """A snapshot of the mounted files, copied several times at once. The copies of the previous turn are destroyed."""
    snapshot = f'soak/files@copy{turn}'
    world.run('snapshot', snapshot)
    failures = []

    def copy(number):
        try:
            world.copy(snapshot, f'soak/copy{turn}_{number}')
        except RuntimeError as e:
            failures.append(e)

    threads = [threading.Thread(target=copy, args=(number,)) for number in range(COPIES)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    for number in range(COPIES):
        world.run('destroy', '-r', f'soak/copy{turn}_{number}')
    world.run('destroy', snapshot)


def snapshots(world, rng, turn):
    """Twenty snapshots: taken, listed, compared, destroyed."""
    names = [f'soak/files@turn{turn}_{number}' for number in range(20)]
    for name in names:
        world.run('snapshot', name)
    world.run('list', '-t', 'all', '-o', 'all')
    world.run('diff', names[0], names[-1])
    for name in names:
        world.run('destroy', name)


def directories(world, rng, turn):
    """A directory imported, restored, and synced to another one."""
    fill_tree(world.tree, world.bytes // 8, rng)
    world.run('import', world.tree, f'soak/imported@turn{turn}')
    restored = os.path.join(world.top, 'restored')
    shutil.rmtree(restored, ignore_errors=True)
    world.run('restore', f'soak/imported@turn{turn}', restored)
    world.run('sync', f'soak/imported', os.path.join(world.top, 'synced'))
    if turn >= 3:
        world.run('destroy', f'soak/imported@turn{turn - 3}')


def filesystems(world, rng, turn):
    """Ten filesystems created, mounted, written and destroyed."""
    for number in range(10):
        name, mnt = f'soak/made{number}', os.path.join(world.top, f'made{number}')
        world.run('create', '-o', f'mountpoint={mnt}', name)
        world.run('mount', name)
        write_file(os.path.join(mnt, 'file'), MIB, rng)
    for number in range(10):
        world.run('unmount', f'soak/made{number}')
        world.run('destroy', '-r', f'soak/made{number}')


WORK = (files, copies, snapshots, directories, filesystems)


def soak(world, seconds, report=lambda *_: None):
    """Works for `seconds`. Returns the memory (MiB) sampled every second during the work, the memory after it was
    returned to the system, and the turns of each worker."""
    end, failures, turns, samples = time.monotonic() + seconds, [], dict.fromkeys(WORK, 0), []

    def work(kind, seed):
        rng = random.Random(seed)
        try:
            while time.monotonic() < end and not failures:
                kind(world, rng, turns[kind])
                turns[kind] += 1
        except Exception as e:
            failures.append((kind.__name__, e))

    threads = [threading.Thread(target=work, args=(kind, seed)) for seed, kind in enumerate(WORK)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        samples.append(world.memory())
        report(samples, turns)
        time.sleep(1)
    if failures:
        raise RuntimeError('%s: %s' % failures[0])
    # The allocator returns memory that was unused for ten seconds.
    given_back = world.memory()[0]
    for _ in range(RETURN_SECONDS):
        if given_back <= BUDGET_MIB:
            break
        time.sleep(1)
        given_back = min(given_back, world.memory()[0])
    world.run('check', 'soak')
    return [memory for memory, _, _ in samples], given_back, turns


def median(values):
    return sorted(values)[len(values) // 2]


def growth(samples):
    """The median of the last quarter divided by that of the second. The first quarter fills the caches."""
    quarter = max(1, len(samples) // 4)
    return median(samples[-quarter:]) / median(samples[quarter:2 * quarter] or samples)


def measure(bench, seconds, megabytes):
    """Rows for `run.py`."""
    world = World(bench.binary, megabytes, bench.dir)
    try:
        samples, given_back, turns = soak(world, seconds)
    finally:
        world.close()
    bench.row('soak: turns of the slowest worker', min(turns.values()), 'count', limit=1)
    bench.row('soak: most memory', max(samples), 'MiB', limit=2 * BUDGET_MIB + 128, at_most=True)
    bench.row('soak: memory after it was given back', given_back, 'MiB', limit=BUDGET_MIB, at_most=True)
    bench.row('soak: memory at the end for that at the start', growth(samples), 'ratio', limit=1.25, at_most=True,
              firm=False)


def main():
    seconds = int(sys.argv[2]) if len(sys.argv) > 2 else 3600
    world = World(sys.argv[1], int(sys.argv[3]) if len(sys.argv) > 3 else 400)

    def report(samples, turns):
        if len(samples) % 60 == 1:
            memory, threads, fds = samples[-1]
            done = ', '.join(f'{kind.__name__} {count}' for kind, count in turns.items())
            print(f'{len(samples):6} s  {memory:7.1f} MiB  {threads:3} threads  {fds:3} files open   turns: {done}',
                  flush=True)

    try:
        samples, given_back, turns = soak(world, seconds, report)
        print(f'most {max(samples):.1f} MiB, given back to {given_back:.1f} MiB, '
              f'at the end {growth(samples):.2f} times the start')
    finally:
        world.close()


if __name__ == '__main__':
    main()
