"""`snowmelt sync` over a link with delay, also compared with syncoid."""
import json
import os
import shutil
import subprocess
import sys
import time

DELAY = 0.05                # seconds in each direction: a round trip takes 100 ms
SMALL = 4096                # bytes of a change
HERE = os.path.dirname(os.path.abspath(__file__))


def seconds(melt, *args):
    """Runs a command that must succeed. Returns its duration and its standard output."""
    begun = time.monotonic()
    done = melt.run(*args, timeout=1800)
    took = time.monotonic() - begun
    if done.status != 0:
        raise SystemExit(str(done))
    return took, done.out


SSH = '''#!/bin/bash
# ssh for syncoid: one connection, with a session in it for every command.
while [ $# -gt 0 ]; do
  case $1 in
    -O|-M) exit 0 ;;
    -[bcDEeFIiJLlmopQRSWw]) shift 2 ;;
    -*) shift ;;
    *) break ;;
  esac
done
host=$1; shift
DELAY_OPEN=1 exec %s "$host" "$*"
'''


class Link:
    """Two home directories, and the replacement for ssh between them."""

    def __init__(self, bench):
        self.near, self.far = bench.home('near'), bench.home('far')
        for melt in (self.near, self.far):
            melt.ok('shims', os.path.join(melt.top, 'bin'))
        shims = os.path.join(self.far.top, 'bin')
        os.symlink(self.far.binary, os.path.join(shims, 'snowmelt'))
        self.near.env['DELAY_ENV'] = os.path.join(self.far.top, 'env.json')
        with open(self.near.env['DELAY_ENV'], 'w') as f:
            json.dump(dict(self.far.env, PATH=shims + ':' + self.far.env['PATH']), f)
        self.rsh = '%s %s %g' % (sys.executable, os.path.join(HERE, 'delay.py'), DELAY)
        self.change = os.path.join(self.near.top, 'change')
        os.mkdir(self.change)

    def changed(self, names):
        """Changes 4 KiB in each dataset, and takes a snapshot."""
        with open(os.path.join(self.change, 'file'), 'wb') as f:
            f.write(os.urandom(SMALL))
        for name in names:
            self.near.ok('import', self.change, name)

    def sync(self, tree):
        return seconds(self.near, 'sync', '-r', '--json', '--no-snapshot', '-e', self.rsh, tree, 'host:' + tree)

    def syncoid(self, tree):
        """Seconds of a sync by syncoid."""
        place = os.path.join(self.near.top, 'bin')
        with open(os.path.join(place, 'ssh'), 'w') as f:
            f.write(SSH % self.rsh)
        os.chmod(f.name, 0o755)
        env = dict(self.near.env, PATH=place + ':' + self.near.env['PATH'])
        begun = time.monotonic()
        done = subprocess.run(['syncoid', '-r', '--quiet', '--no-sync-snap', '--no-privilege-elevation', tree,
                               'host:%s-syncoid' % tree],
                              env=env, cwd=self.near.top, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit('syncoid: ' + done.stderr[-2000:])
        return time.monotonic() - begun

    def directory(self, source, target):
        """Seconds of a sync into a directory of the remote machine."""
        return seconds(self.near, 'sync', '--retries', '0', '-e', self.rsh, source, 'host:' + target)[0]

    def close(self):
        for melt in (self.near, self.far):
            melt.ok('check', 'bench')
            melt.close()


def many(bench):
    """A thousand datasets over a link with delay: without changes, and with a small change in each."""
    count, link = bench.size['datasets'], Link(bench)
    link.near.ok('create', 'bench/all')
    link.near.ok('snapshot', 'bench/all@one')
    names = ['bench/all/d%04d' % number for number in range(count)]
    link.changed(names)
    first, _ = link.sync('bench/all')
    bench.row('%d datasets, 100 ms: first sync' % count, first, 's')
    took, out = link.sync('bench/all')
    assert json.loads(out)['bytes'] == 0, out
    bench.row('%d datasets, 100 ms: nothing to do' % count, took, 's', limit=5, at_most=True)
    link.changed(names)
    took, out = link.sync('bench/all')
    bench.row('%d datasets, 100 ms: a small change in each' % count, took, 's', limit=60, at_most=True)
    link.close()


def beside_syncoid(bench):
    """The same with fewer datasets, compared with syncoid, which needs seconds for each."""
    if not shutil.which('syncoid'):
        print('not installed, so not compared with: syncoid')
        return
    count, link = bench.size['syncoid'], Link(bench)
    link.near.ok('create', 'bench/few')
    names = ['bench/few/d%04d' % number for number in range(count)]
    link.near.ok('snapshot', 'bench/few@one')
    link.changed(names)
    for what in ('first sync', 'nothing to do', 'a small change in each'):
        if what.startswith('a small'):
            link.changed(names)
        ours, theirs = link.sync('bench/few')[0], link.syncoid('bench/few')
        bench.row('%d datasets, 100 ms: %s' % (count, what), ours, 's', theirs, 's syncoid', ours / theirs)
    link.close()


def directories(bench):
    """A tree of small files, ten in each directory, into a directory of a remote machine: the first sync, and one with
    1 % of the files changed."""
    count, link = bench.size['far_files'], Link(bench)
    tree, copy = os.path.join(link.near.top, 'tree'), os.path.join(link.far.top, 'copy')
    paths = [os.path.join(tree, 'd%d' % (number // 1000), 'e%d' % (number // 10 % 100), 'f%d' % number)
             for number in range(count)]
    for number, path in enumerate(paths):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, 'w') as f:
            f.write('%d\n' % number * (1 + number % 500))
    link.near.ok('import', tree, 'bench/tree')
    what = '%d small files, 100 ms, into a directory there: ' % count
    bench.row(what + 'first sync', link.directory('bench/tree', copy), 's', limit=count / 200 + 4, at_most=True)
    for path in paths[::100]:
        with open(path, 'a') as f:
            f.write('more\n')
    link.near.ok('import', tree, 'bench/tree')
    bench.row(what + 'one in a hundred changed', link.directory('bench/tree', copy), 's', limit=6, at_most=True)
    if subprocess.run(['diff', '-r', '-x', '.snowmelt-sync', tree, copy]).returncode != 0:
        raise SystemExit('the copy differs')
    link.close()
