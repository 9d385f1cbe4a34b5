"""Runs inside the virtual machine: takes part in rounds of changes with the host.

For each round R the host writes /share/in/R.fs and R.vol (streams) and then R.json {seed, ops}. Real ZFS receives and
mounts them here, and their manifests are written (/share/out/R.before, R.volume). Then mutate.py changes the
filesystem, and the volume is written to. A snapshot of both is sent back (/share/out/R.fs, R.vol) with its manifests
(R.after, R.volume-after). /share/out/R.json has the result. {end: true} ends.
"""
import json
import os
import random
import subprocess
import sys
import time
import traceback

sys.path.insert(0, '/scripts')
import guest_tier                       # noqa: E402
from guest_tier import POOL, SHARE, listing, zfs    # noqa: E402
from mutate import Mutator              # noqa: E402

FS, VOLUME, MOUNT = POOL + '/fs', POOL + '/vol', '/mnt/native'


def ok(*args, stdin=None):
    status, _, text = zfs(*args, stdin=stdin)
    if status:
        raise RuntimeError('zfs %s: %s' % (' '.join(args), text))


def newest(dataset):
    rows = listing('list', '-Hpo', 'name,volsize', '-t', 'snapshot', '-s', 'createtxg', '-d', '1', dataset)
    return rows[-1]


def describe(dataset, path):
    name, volsize = newest(dataset)
    block = zfs('get', '-Hpo', 'value', 'volblocksize', dataset)[1].strip() if volsize != '-' else '-'
    lines = guest_tier.manifest_of(name, volsize, block)
    with open(path, 'w') as f:
        f.write('\n'.join(lines))


def send(dataset, base, snapshot, path):
    with open(path + '.part', 'wb') as f:
        p = subprocess.run(['zfs', 'send', '-i', base, '%s@%s' % (dataset, snapshot)], stdin=subprocess.DEVNULL,
                           stdout=f, stderr=subprocess.PIPE)
    if p.returncode:
        raise RuntimeError(p.stderr.decode('utf-8', 'replace'))
    os.rename(path + '.part', path)


def change_volume(seed):
    rnd = random.Random(seed)
    size = int(zfs('get', '-Hpo', 'value', 'volsize', VOLUME)[1])
    with open(guest_tier.volume_device(VOLUME), 'r+b', buffering=0) as f:
        for _ in range(20):
            at = rnd.randrange(size // 4096) * 4096
            f.seek(at)
            f.write(rnd.randbytes(4096) * min(rnd.randrange(1, 9), (size - at) // 4096))
        os.fsync(f.fileno())


def take_part(number, order):
    for dataset, kind in ((FS, 'fs'), (VOLUME, 'vol')):
        ok('receive', '-F', '-u', dataset, stdin='%s/in/%d.%s' % (SHARE, number, kind))
    out = '%s/out/%d' % (SHARE, number)
    describe(FS, out + '.before')
    describe(VOLUME, out + '.volume')
    bases = newest(FS)[0], newest(VOLUME)[0]
    os.makedirs(MOUNT, exist_ok=True)
    p = subprocess.run(['mount', '-t', 'zfs', '-o', 'zfsutil', FS, MOUNT], capture_output=True, text=True)
    if p.returncode:
        raise RuntimeError(p.stderr)
    try:
        Mutator(MOUNT, order['seed']).run(order['ops'])
    finally:
        subprocess.run(['umount', MOUNT])
    change_volume(order['seed'])
    name = 'zfs%d' % number
    ok('snapshot', '%s@%s' % (FS, name), '%s@%s' % (VOLUME, name))
    send(FS, bases[0], name, out + '.fs')
    send(VOLUME, bases[1], name, out + '.vol')
    describe(FS, out + '.after')
    describe(VOLUME, out + '.volume-after')


def main():
    guest_tier.make_pool()
    number = 0
    while True:
        path = '%s/in/%d.json' % (SHARE, number)
        while not os.path.exists(path):
            time.sleep(0.1)
        with open(path) as f:
            order = json.load(f)
        if order.get('end'):
            subprocess.run(['zpool', 'scrub', '-w', POOL])
            answer = {'status': subprocess.run(['zpool', 'status', '-v', POOL], capture_output=True, text=True).stdout}
        else:
            try:
                take_part(number, order)
                answer = {'error': None}
            except Exception:
                answer = {'error': traceback.format_exc()}
        done = '%s/out/%d.json' % (SHARE, number)
        with open(done + '.part', 'w') as f:
            json.dump(answer, f)
        os.rename(done + '.part', done)
        if order.get('end') or answer['error']:
            return
        number += 1


main()
