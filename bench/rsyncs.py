"""Content over rsync's protocol, with either program at either end; and what a renamed directory costs."""
import json
import os
import random
import shutil

from indexes import Daemon, free_port

MIB = 1 << 20
WHEN = 1_600_000_000
PER_DIRECTORY = 100


def fill(path, size, seed):
    rng = random.Random(seed)
    with open(path, 'wb') as file:
        for at in range(0, size, MIB):
            file.write(rng.randbytes(min(MIB, size - at)))
    os.utime(path, (WHEN, WHEN))


def grow(root, files):
    for at in range(files):
        directory = os.path.join(root, str(at // PER_DIRECTORY))
        os.makedirs(directory, exist_ok=True)
        fill(os.path.join(directory, str(at)), 500 + at % 2000, at)


def shell(top):
    """A command in the place of ssh, for both programs."""
    path = os.path.join(top, 'shell')
    with open(path, 'w') as file:
        file.write('#!/bin/sh\nshift\nexec sh -c "$*"\n')
    os.chmod(path, 0o755)
    return path


def measure(bench, timed, pool, large, small, moved):
    if shutil.which('rsync') is None:
        return print('rsync: rsync is not there')
    melt, top = bench.home('rsync-pool'), os.path.join(bench.dir, 'rsync')
    os.makedirs(os.path.join(top, 'large'))
    fill(os.path.join(top, 'large', 'file'), large, 1)
    grow(os.path.join(top, 'small'), small)
    port, config = free_port(), os.path.join(top, 'rsyncd.conf')
    with open(config, 'w') as file:
        file.write('use chroot = no\nuid = 0\ngid = 0\n[m]\npath = %s\nread only = no\n' % top)
    with open(config + '.ours', 'w') as file:
        file.write('uid = 0\ngid = 0\n[m]\npath = %s\n' % top)
    stock = Daemon(['rsync', '--daemon', '--no-detach', '--config', config, '--address', '127.0.0.1', '--port', str(port)], port)
    ours = Daemon([bench.binary, 'serve', 'rsync', '--config', config + '.ours', '--address', '127.0.0.1', '--port', '0'])
    try:
        for name, what in (('large', 'a file of %d MiB' % (large // MIB)), ('small', '%d files' % small)):
            transfer(bench, timed, (melt, pool, top), (stock, ours), name, what)
        renames(bench, timed, (melt, pool, top), moved)
    finally:
        stock.close()
        ours.close()
        melt.close()
        shutil.rmtree(top, ignore_errors=True)


def transfer(bench, timed, where, daemons, name, what):
    (melt, pool, top), (stock, ours) = where, daemons
    copy, rsh = os.path.join(top, 'copy'), shell(top)
    tree = os.path.join(top, name) + '/'

    def rsync(*args):
        shutil.rmtree(copy, ignore_errors=True)
        return timed(['rsync', '-aHAX', *args])

    def told(row, mine, theirs, server=None):
        bench.row('%s, %s' % (row, what), mine.wall, 's', theirs.wall, 's rsync', mine.wall / theirs.wall)
        if server:
            bench.row('%s, %s, CPU of the server' % (row, what), server[0], 's', server[1], 's rsync')

    url = 'rsync://127.0.0.1:%d/m/' % stock.port
    theirs = rsync(url + name + '/', copy + '/')
    told('pulled from rsync', bench.run(melt, 'sync', url + name, pool + '/' + name), theirs)
    stock.spent(), ours.spent()
    theirs = rsync(url + name + '/', copy + '/')
    theirs_cpu = stock.spent()[0]
    mine = rsync('rsync://127.0.0.1:%d/m/%s/' % (ours.port, name), copy + '/')
    told('served to rsync', mine, theirs, (ours.spent()[0], theirs_cpu))
    theirs = rsync('--no-W', '-e', rsh, tree, 'host:' + copy + '/')
    melt.ok('create', pool + '/pushed-' + name)
    mine = timed(['rsync', '-aHAX', '-e', rsh, '--rsync-path=%s rsync' % bench.binary, tree, 'host:%s/pushed-%s/' % (pool, name)], env=melt.env, cwd=melt.top)
    told('received from rsync over a remote shell', mine, theirs)
    theirs = rsync(tree, url + 'copy/')
    shutil.rmtree(copy, ignore_errors=True)
    told('pushed to rsync', bench.run(melt, 'sync', '%s/%s@' % (pool, name), url + 'copy'), theirs)
    shutil.rmtree(copy, ignore_errors=True)


def renames(bench, timed, where, size):
    """A directory that got another name at the source."""
    melt, pool, top = where
    here, there = pool + '/moved', pool + '/moved-copy'
    source, copy = os.path.join(top, 'moved'), os.path.join(top, 'moved-copy')
    os.makedirs(os.path.join(source, 'old'))
    for at in range(8):
        fill(os.path.join(source, 'old', str(at)), size // 8, at)
    melt.ok('import', source, here)
    melt.ok('sync', here, there)
    timed(['rsync', '-a', source + '/', copy])
    os.rename(os.path.join(source, 'old'), os.path.join(source, 'new'))
    melt.ok('import', source, here)
    theirs = timed(['rsync', '-a', '--delete', '--no-W', source + '/', copy])
    mine = json.loads(melt.ok('sync', '--json', here, there).out)
    bench.row('sent for a renamed directory of %d MiB' % (size // MIB), mine['bytes'] / MIB, 'MiB', size / MIB, 'MiB rsync', limit=1, at_most=True)
    bench.row('wall of rsync for it', theirs.wall, 's')
