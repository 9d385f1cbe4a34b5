"""`snowmelt sync`: over a link with delay, and and of what was touched and renamed."""
import json
import os
import shutil
import sys
import time

MIB = 1 << 20
DELAY = 0.05                # seconds each way: 100 ms there and back
SMALL = 4096                # bytes of a change
TREE_MAX = 100_000          # bytes sent for a touch or a rename
HERE = os.path.dirname(os.path.abspath(__file__))


def seconds(melt, *args):
    """A command that must succeed: how long it took, and its standard output."""
    begun = time.monotonic()
    done = melt.run(*args, timeout=1800)
    took = time.monotonic() - begun
    if done.status != 0:
        raise SystemExit(str(done))
    return took, done.out


def link(bench):
    """A thousand datasets over a link with delay: with nothing to do, and with a small change in each."""
    count = bench.size['datasets']
    near, far = bench.home('near'), bench.home('far')
    environment = os.path.join(far.top, 'env.json')
    shims = os.path.join(far.top, 'bin')
    for melt in (near, far):
        melt.ok('shims', os.path.join(melt.top, 'bin'))
    os.symlink(far.binary, os.path.join(shims, 'snowmelt'))
    with open(environment, 'w') as f:
        json.dump(dict(far.env, PATH=shims + ':' + far.env['PATH']), f)
    near.env['DELAY_ENV'] = environment
    rsh = '%s %s %g' % (sys.executable, os.path.join(HERE, 'delay.py'), DELAY)
    change = os.path.join(near.top, 'change')
    os.mkdir(change)
    near.ok('create', 'bench/all')
    names = ['bench/all/d%04d' % number for number in range(count)]

    def changed():
        with open(os.path.join(change, 'file'), 'wb') as f:
            f.write(os.urandom(SMALL))
        for name in names:
            near.ok('import', change, name)

    changed()
    sync = ['sync', '-r', '--json', '-e', rsh, 'bench/all', 'host:bench/all']
    first, _ = seconds(near, *sync)
    bench.row('%d datasets, 100 ms: first sync' % count, first, 's')
    took, out = seconds(near, *sync)
    assert json.loads(out)['bytes'] == 0, out
    bench.row('%d datasets, 100 ms: nothing to do' % count, took, 's', limit=5, at_most=True)
    changed()
    took, out = seconds(near, *sync)
    bench.row('%d datasets, 100 ms: a small change in each' % count, took, 's', limit=60, at_most=True)
    for melt in (near, far):
        melt.ok('check', 'bench')
        melt.close()
        shutil.rmtree(melt.top, ignore_errors=True)


def large(bench):
    """A file that is touched, and renamed: whatever its size."""
    for size in bench.size['synced']:
        near = bench.home('sync-%d' % size)
        near.create_pool('copy')
        tree = os.path.join(near.top, 'tree')
        os.mkdir(tree)
        path = os.path.join(tree, 'file')
        with open(path, 'wb') as f:
            for _ in range(size // MIB):
                f.write(os.urandom(MIB))
        said = '%g GiB' % (size / (1 << 30))
        sync = ('sync', '--json', '--no-snapshot', 'bench/fs', 'copy/fs')
        near.ok('import', tree, 'bench/fs')
        took, out = seconds(near, *sync)
        bench.row('%s, dataset to dataset' % said, json.loads(out)['bytes'] / took / 1e6, 'MB/s')
        for what in ('touched', 'renamed'):
            if what == 'touched':
                os.utime(path)
            else:
                os.rename(path, path + '-renamed')
            near.ok('import', tree, 'bench/fs')
            took, out = seconds(near, *sync)
            bench.row('%s %s, dataset to dataset' % (said, what), took, 's', limit=0.1, at_most=True, firm=False)
            bench.row('%s %s: sent' % (said, what), json.loads(out)['bytes'] / 1000, 'kB', limit=TREE_MAX / 1000, at_most=True)
        near.close()
        shutil.rmtree(near.top, ignore_errors=True)
