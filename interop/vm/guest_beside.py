"""Runs inside the virtual machine: real ZFS and a pool of snowmelt side by side, with syncoid and `snowmelt sync`
between them.

/share/bundle.tar holds programs of the host (tiers/bundle.py), unpacked to /tmp/bundle. Its bin has snowmelt, under
that name and as zfs and zpool, and perl, ps and syncoid. Real ZFS is in the PATH of the machine. A replacement for ssh
knows two hosts: `melt` has the commands of snowmelt first in its PATH, `real` those of ZFS.

Each check of CHECKS writes /share/out/NAME.json: {error, pairs: [[what, path, path], ...]}. The two manifests of a pair
must be equal.
"""
import json
import os
import socket
import subprocess
import sys
import tarfile
import time
import traceback

sys.path.insert(0, '/scripts')
import guest_tier                               # noqa: E402
from guest_tier import POOL, SHARE, listing     # noqa: E402
from mutate import Mutator                      # noqa: E402

BUNDLE, STAND_IN, TREES = '/tmp/bundle', '/tmp/stand-in', '/tmp/trees'
OURS = 'pond'
OPS = 25

SSH = r'''#!/bin/bash
# Accepts ssh's options. Only the host matters.
while [ $# -gt 0 ]; do
  case $1 in
    -O) exit 0 ;;
    -[bcDEeFIiJLlmopQRSWw]) shift 2 ;;
    -*) shift ;;
    *) break ;;
  esac
done
host=${1#*@}; shift
case $host in
  melt) PATH=%s/bin:$PATH ;;
  real) ;;
  *) echo "ssh: Could not resolve hostname $host" >&2; exit 255 ;;
esac
exec bash -c "$*"
''' % BUNDLE

# A `zfs` whose `send` ends after some bytes.
CUT = '''#!/bin/sh
case "$*" in
  send*" -n"*) ;;
  send*) exec %(zfs)s "$@" | head -c %(limit)d; exit 0 ;;
esac
exec %(zfs)s "$@"
'''


def run(*command, path=None, fails=False):
    """Runs a command that must succeed, or fail if `fails` is set. Returns its output."""
    env = dict(os.environ)
    if path:
        env['PATH'] = path + ':' + env['PATH']
    p = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env)
    text = p.stdout.decode('utf-8', 'replace')
    if (p.returncode != 0) != fails:
        raise RuntimeError('%s gave %d: %s' % (' '.join(command), p.returncode, text[-3000:]))
    return text


def syncoid(*words, path=None, fails=False):
    time.sleep(1.1)         # syncoid names its snapshots by the second
    return run(BUNDLE + '/bin/perl', BUNDLE + '/bin/syncoid', '--no-privilege-elevation', *words, path=path,
               fails=fails)


def snowmelt(*words, fails=False):
    return run(BUNDLE + '/bin/snowmelt', *words, fails=fails)


def executable(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, 'w') as f:
        f.write(text)
    os.chmod(path, 0o755)


class Real:
    """Datasets of real ZFS."""
    seed = 0

    def snapshots(self, dataset):
        return dict(row for row in listing('list', '-Hpo', 'name,guid', '-t', 'snapshot', '-s', 'createtxg', '-d', '1',
                                           dataset))

    def manifest(self, snapshot):
        return '\n'.join(guest_tier.manifest_of(snapshot, '-', '-'))

    def change(self, dataset, snapshot, ops=OPS):
        if not listing('list', '-H', dataset):
            run('zfs', 'create', '-o', 'mountpoint=legacy', '-p', dataset)
        mount = '/mnt/change'
        os.makedirs(mount, exist_ok=True)
        Real.seed += 1
        run('mount', '-t', 'zfs', dataset, mount)
        try:
            Mutator(mount, Real.seed).run(ops)
        finally:
            run('umount', mount)
        run('zfs', 'snapshot', '%s@%s' % (dataset, snapshot))


class Ours:
    """Datasets of snowmelt."""

    def snapshots(self, dataset):
        text = snowmelt('list', '-Hpo', 'name,guid', '-t', 'snapshot', '-s', 'createtxg', '-d', '1', dataset)
        return dict(line.split('\t') for line in text.split('\n') if line)

    def manifest(self, snapshot):
        return snowmelt('manifest', snapshot)

    def change(self, dataset, snapshot, ops=OPS):
        tree = '%s/%s' % (TREES, dataset.replace('/', '_'))
        os.makedirs(tree, exist_ok=True)
        Real.seed += 1
        Mutator(tree, Real.seed).run(ops)
        # -F, because a received dataset is changed on purpose.
        snowmelt('import', '-F', tree, '%s@%s' % (dataset, snapshot))


REAL, MELT = Real(), Ours()


class Check:
    def __init__(self, name):
        self.name, self.pairs = name, []

    def same(self, real, ours, least=1):
        """Checks that the datasets have at least this many snapshots in common, including the newest of both, with
        equal guids. Their contents are written down for the host to compare."""
        theirs, mine = ({name.partition('@')[2]: guid for name, guid in end.snapshots(dataset).items()}
                        for end, dataset in ((REAL, real), (MELT, ours)))
        common = [name for name in theirs if name in mine]
        if len(common) < least or list(theirs)[-1] != list(mine)[-1]:
            raise RuntimeError('%s has %s, %s has %s' % (real, theirs, ours, mine))
        for name in common:
            if theirs[name] != mine[name]:
                raise RuntimeError('guids of %s differ: %s in %s, %s in %s'
                                   % (name, theirs[name], real, mine[name], ours))
        # Older ones were compared when they arrived.
        name, stem = common[-1], '%s/out/%s-%d' % (SHARE, self.name, len(self.pairs))
        for end, dataset, path in ((REAL, real, stem + '.real'), (MELT, ours, stem + '.ours')):
            with open(path, 'w', encoding='utf-8', errors='surrogateescape') as f:
                f.write(end.manifest('%s@%s' % (dataset, name)))
        self.pairs.append(['%s and %s @%s' % (real, ours, name), stem + '.real', stem + '.ours'])


def cut(name, zfs, limit):
    executable('%s/%s/zfs' % (STAND_IN, name), CUT % {'zfs': zfs, 'limit': limit})
    return '%s/%s' % (STAND_IN, name)


def syncoid_push(check):
    """syncoid: real ZFS here, snowmelt over ssh."""
    source, target = POOL + '/home', OURS + '/home'
    REAL.change(source, 'one', 40)
    REAL.change(source + '/sub', 'one')
    run('zfs', 'clone', source + '/sub@one', source + '/clone')
    run('zfs', 'snapshot', source + '/clone@two')
    syncoid('-r', source, 'root@melt:' + target)
    for name in ('', '/sub', '/clone'):
        check.same(source + name, target + name)
    origin = snowmelt('get', '-Ho', 'value', 'origin', target + '/clone').strip()
    if origin != target + '/sub@one':
        raise RuntimeError('origin of the clone: ' + origin)
    REAL.change(source, 'two')
    REAL.change(source + '/sub', 'two')
    syncoid('-r', '--compress=zstd-fast', source, 'root@melt:' + target)
    for name in ('', '/sub', '/clone'):
        check.same(source + name, target + name, 2)
    # Without syncoid's own snapshots, and with a bookmark as the base.
    REAL.change(source, 'three')
    syncoid('--no-sync-snap', '--create-bookmark', source, 'root@melt:' + target)
    for snapshot in list(REAL.snapshots(source)):
        run('zfs', 'destroy', snapshot)
    REAL.change(source, 'four')
    syncoid('--no-sync-snap', '--create-bookmark', source, 'root@melt:' + target)
    check.same(source, target)
    # Interrupted and resumed.
    REAL.change(source, 'five', 60)
    size = int(run('zfs', 'send', '-nP', '-i', '@four', source + '@five').split()[-1])
    said = syncoid('--no-sync-snap', source, 'root@melt:' + target, path=cut('cut-real', '/usr/sbin/zfs', size // 2),
                   fails=True)
    if snowmelt('get', '-Ho', 'value', 'receive_resume_token', target).strip() == '-':
        raise RuntimeError('nothing to resume: ' + said)
    said = syncoid('--no-sync-snap', source, 'root@melt:' + target)
    if 'Resuming interrupted' not in said:
        raise RuntimeError('not resumed: ' + said)
    check.same(source, target, 2)


def syncoid_pull(check):
    """syncoid: snowmelt over ssh, real ZFS here. Then real ZFS continues and sends back."""
    source, target = OURS + '/own', POOL + '/own'
    MELT.change(source, 'one', 40)
    MELT.change(source + '/sub', 'one')
    syncoid('-r', '--recvoptions=u', 'root@melt:' + source, target)
    for name in ('', '/sub'):
        check.same(target + name, source + name)
    MELT.change(source, 'two', 60)
    size = int(snowmelt('send', '-nP', '-i', '@one', source + '@two').split()[-1])
    real = cut('cut-ours', BUNDLE + '/bin/zfs', size // 2)
    executable(STAND_IN + '/cut/ssh', SSH.replace('PATH=', 'PATH=%s:' % real))
    said = syncoid('--no-sync-snap', '--recvoptions=u', 'root@melt:' + source, target, path=STAND_IN + '/cut',
                   fails=True)
    token = listing('get', '-Ho', 'value', 'receive_resume_token', target)[0][0]
    if token == '-':
        raise RuntimeError('nothing to resume: ' + said)
    syncoid('--no-sync-snap', '--recvoptions=u', 'root@melt:' + source, target)
    syncoid('--no-sync-snap', '--recvoptions=u', 'root@melt:' + source, target)
    check.same(target, source, 2)
    run('zfs', 'set', 'mountpoint=legacy', target)
    REAL.change(target, 'theirs')
    syncoid('--no-sync-snap', target, 'root@melt:' + source)
    check.same(target, source, 3)


def sync_out(check):
    """snowmelt sync into real ZFS, here and over ssh."""
    source, target = OURS + '/tree', POOL + '/tree'
    for name in ('', '/a', '/b'):
        MELT.change(source + name, 'one')
    snowmelt('clone', source + '/b@one', source + '/a2')
    snowmelt('sync', '-r', source, 'zfs:' + target)
    for name in ('', '/a', '/b', '/a2'):
        check.same(target + name, source + name)
    origin = listing('get', '-Ho', 'value', 'origin', target + '/a2')[0][0]
    if origin != target + '/b@one':
        raise RuntimeError('origin of the clone: ' + origin)
    for name in ('', '/a'):
        MELT.change(source + name, 'two')
    snowmelt('rename', source + '/b', source + '/c')
    snowmelt('sync', '-r', source, 'real:zfs:' + target)
    for name in ('', '/a', '/c'):
        check.same(target + name, source + name, 2 if name != '/c' else 1)
    said = json.loads(snowmelt('sync', '-r', '--json', source, 'zfs:' + target))
    if said['bytes'] != 0:
        raise RuntimeError('nothing had changed: %s' % said)


def sync_in(check):
    """snowmelt sync from real ZFS, here and over ssh. The base for the next sync outlives the snapshot."""
    source, target = POOL + '/origin', OURS + '/copy'
    for name in ('', '/a'):
        REAL.change(source + name, 'one')
    snowmelt('sync', '-r', 'zfs:' + source, target)
    for name in ('', '/a'):
        check.same(source + name, target + name)
    for snapshot in [s for name in ('', '/a') for s in REAL.snapshots(source + name)]:
        run('zfs', 'destroy', snapshot)
    for name in ('', '/a'):
        REAL.change(source + name, 'two')
    snowmelt('sync', '-r', 'real:zfs:' + source, target)
    for name in ('', '/a'):
        check.same(source + name, target + name)
    # The target was written to since: refused, and allowed with --force.
    MELT.change(target, 'astray')
    REAL.change(source, 'three')
    if '--force' not in snowmelt('sync', 'zfs:' + source, target, fails=True):
        raise RuntimeError('the way out is not told')
    snowmelt('sync', '--force', 'zfs:' + source, target)
    check.same(source, target)


CHECKS = (syncoid_push, syncoid_pull, sync_out, sync_in)


def main():
    with tarfile.open(SHARE + '/bundle.tar') as tar:
        tar.extractall('/tmp')
    executable(STAND_IN + '/bin/ssh', SSH)
    os.environ['PATH'] = '%s/bin:%s' % (STAND_IN, os.environ['PATH'])
    for name in ('ps', 'perl'):
        os.symlink('%s/bin/%s' % (BUNDLE, name), '%s/bin/%s' % (STAND_IN, name))
    socket.sethostname('machine')
    # The bundle's loader starts the programs, so snowmelt cannot start itself for a mount in the background.
    os.environ['SNOWMELT_AUTOMOUNT'] = 'off'
    # Programs start slowly under emulation.
    os.environ['PERL_CAPTURE_TINY_TIMEOUT'] = '300'
    guest_tier.make_pool()
    # Memory disks have no extended attributes.
    run('zfs', 'create', '-o', 'mountpoint=' + TREES, POOL + '/trees')
    snowmelt('pool', 'create', OURS)
    for test in CHECKS:
        check, error, begun = Check(test.__name__), None, time.monotonic()
        try:
            test(check)
            snowmelt('check', OURS)
        except Exception:
            error = traceback.format_exc()
        path = '%s/out/%s.json' % (SHARE, check.name)
        with open(path + '.part', 'w') as f:
            json.dump({'error': error, 'pairs': check.pairs, 'seconds': time.monotonic() - begun}, f)
        os.rename(path + '.part', path)


main()
