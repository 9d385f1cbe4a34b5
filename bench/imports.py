"""Repeated runs of `snowmelt import`, compared with `find`, rsync, restic and borg on the same tree in the same run."""
import json
import os
import resource
import shutil
import subprocess
import time

MIB = 1 << 20
SMALL_FILE = 600            # bytes on average
PER_DIRECTORY = 100
WRITTEN_MAX = 256 << 10     # maximum bytes written after a change of name or time only


class Cost:
    """Wall and CPU seconds of a command, and the bytes that it and its children read and wrote (`/proc/PID/io`: files,
    pipes and sockets, whether cached or not)."""

    def __init__(self, command, env, cwd):
        script = '"$@" || exit 9; cat /proc/$$/io'
        begun, spent = time.monotonic(), cpu_of_children()
        done = subprocess.run(['sh', '-c', script, 'sh', *command], env=env, cwd=cwd, capture_output=True)
        self.wall, self.cpu = time.monotonic() - begun, cpu_of_children() - spent
        if done.returncode != 0:
            raise SystemExit('%s failed: %s' % (command, done.stderr.decode('utf-8', 'replace')[-1000:]))
        counters = dict(line.split(': ') for line in done.stdout.decode().split('\n')[-8:] if ': ' in line)
        self.read, self.written = int(counters['rchar']), int(counters['wchar'])
        self.out, self.err = done.stdout, done.stderr


def cpu_of_children():
    """CPU seconds of all children that have ended and been waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


class Ours:
    name = 'snowmelt import'

    def __init__(self, bench, source):
        self.melt, self.source, self.count = bench.home('import-' + os.path.basename(source)), source, 0

    def run(self):
        self.count += 1
        command = [self.melt.binary, 'import', '--json', self.source, 'bench/fs@%d' % self.count]
        cost = Cost(command, self.melt.env, self.melt.top)
        cost.said = json.loads(cost.out.split(b'\n')[0])
        return cost

    def close(self):
        self.melt.close()
        shutil.rmtree(self.melt.top, ignore_errors=True)


class Find:
    """`find`, only for unchanged trees: it examines everything once, with one thread."""
    name = 'find -printf'

    def __init__(self, bench, source):
        self.source = source

    def run(self):
        return Cost(['sh', '-c', 'exec find "$0" -printf "%s %T@ %C@ %i\\n" > /dev/null', self.source], None, None)

    def close(self):
        pass


class Peer:
    """A program that keeps its copy in its own directory."""
    program = None
    variables = {}

    def __init__(self, bench, source):
        self.source, self.top, self.count = source, os.path.join(bench.dir, self.program), 0
        self.repository = os.path.join(self.top, 'repository')
        os.makedirs(self.top)
        self.env = dict(os.environ, HOME=self.top, **self.variables)
        for command in self.begin():
            subprocess.run(command, env=self.env, check=True, capture_output=True)

    def run(self):
        self.count += 1
        return Cost(self.again(), self.env, self.top)

    def close(self):
        shutil.rmtree(self.top, ignore_errors=True)


class Rsync(Peer):
    program = name = 'rsync'

    def begin(self):
        return []

    def again(self):
        return ['rsync', '-aHAX', '--delete-before', self.source + '/', self.repository + '/']


class Restic(Peer):
    program = name = 'restic'
    variables = {'RESTIC_PASSWORD': 'bench'}

    def begin(self):
        return [['restic', 'init', '-q', '-r', self.repository]]

    def again(self):
        return ['restic', 'backup', '-q', '-r', self.repository, self.source]


class Borg(Peer):
    program = name = 'borg'
    variables = {'BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK': 'yes'}

    def begin(self):
        return [['borg', 'init', '-e', 'none', self.repository]]

    def again(self):
        return ['borg', 'create', '%s::%d' % (self.repository, self.count), self.source]


def peers():
    there = [peer for peer in (Rsync, Restic, Borg) if shutil.which(peer.program)]
    missing = [peer.program for peer in (Rsync, Restic, Borg) if peer not in there]
    if missing:
        print('not installed, so not compared with: ' + ', '.join(missing))
    return there


def beside(bench, what, ours, others):
    """Adds a row for each other program: our time as a ratio to its time."""
    for name, cost in others:
        bench.row('%s, beside %s' % (what, name), ours.wall, 's', cost.wall, 's ' + name, ours.wall / cost.wall)


def unchanged(bench):
    """Many unchanged files."""
    count, source = bench.size['imported'], os.path.join(bench.dir, 'many')
    for directory in range(count // PER_DIRECTORY):
        path = os.path.join(source, '%03d' % (directory // 32), '%05d' % directory)
        os.makedirs(path)
        for file in range(PER_DIRECTORY):
            with open(os.path.join(path, 'file-%04d.txt' % file), 'wb') as f:
                f.write(b'%d %d\n' % (directory, file) * (file * 7 % (SMALL_FILE // 5)))
    ours, find = Ours(bench, source), Find(bench, source)
    first = ours.run()
    bench.row('import of %d files, the first' % count, first.wall, 's')
    walls, finds = [], []
    for _ in range(max(5, bench.size['repeats'])):
        finds.append(find.run())
        walls.append(ours.run())
    best = min(walls, key=lambda cost: cost.wall)
    bench.row('import of these unchanged: files read', walls[-1].said['files_read'], '', limit=0, at_most=True)
    quickest = min(cost.wall for cost in finds)
    bench.row('import of these unchanged', best.wall, 's', quickest, 's ' + find.name, best.wall / quickest, 1.2,
              at_most=True, firm=False)
    others = []
    for peer in peers():
        peer = peer(bench, source)
        peer.run()
        others.append((peer.name, min((peer.run() for _ in range(3)), key=lambda cost: cost.wall)))
        peer.close()
    beside(bench, 'import of these unchanged', best, others)
    ours.close()
    shutil.rmtree(source)


def large(bench):
    """A large file in a directory that is renamed and then touched."""
    size, source = bench.size['large'], os.path.join(bench.dir, 'large')
    os.makedirs(os.path.join(source, 'before'))
    with open(os.path.join(source, 'before', 'file'), 'wb') as f:
        for _ in range(size // MIB):
            f.write(os.urandom(MIB))
    costs = []
    for kind in (Ours, *peers()):
        program = kind(bench, source)
        program.run()
        os.rename(os.path.join(source, 'before'), os.path.join(source, 'after'))
        renamed = program.run()
        os.utime(os.path.join(source, 'after', 'file'))
        touched = program.run()
        os.rename(os.path.join(source, 'after'), os.path.join(source, 'before'))
        costs.append((program.name, renamed, touched))
        program.close()
    shutil.rmtree(source)
    (_, renamed, touched), others = costs[0], costs[1:]
    unit = '%d MiB' % (size // MIB)
    bench.row('renamed directory of %s: of it read' % unit, renamed.said['bytes_read'], 'B', limit=0, at_most=True)
    bench.row('renamed directory: written to the pool', renamed.said['written'] / 1024, 'KiB', limit=WRITTEN_MAX / 1024,
              at_most=True)
    bench.row('renamed directory: read in all', renamed.read / MIB, 'MiB')
    for name, cost, _ in others:
        bench.row('renamed directory: read in all, %s' % name, cost.read / MIB, 'MiB')
    beside(bench, 'renamed directory', renamed, [(name, cost) for name, cost, _ in others])
    bench.row('touched file of %s: of it read' % unit, touched.said['bytes_read'] / size, 'x', limit=1, at_most=True)
    bench.row('touched file: written to the pool', touched.said['written'] / 1024, 'KiB', limit=WRITTEN_MAX / 1024,
              at_most=True)
    beside(bench, 'touched file', touched, [(name, cost) for name, _, cost in others])
