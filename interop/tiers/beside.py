"""Real ZFS and a pool of ours in the same virtual machine: syncoid and `snowmelt sync` between them."""
import json
import os
import shutil
import subprocess
import tarfile

from . import manifests, tools
from .bundle import Bundle
from .vm import VM

CHECKS = ('syncoid_push', 'syncoid_pull', 'sync_out', 'sync_in')
TIMEOUT = 1500
THERE = '/tmp/bundle'


def pack(binary, top, share):
    """Packs the programs that the machine lacks into one file, because small files are slow over 9p."""
    bundle = Bundle(os.path.join(top, 'bundle'), THERE)
    bundle.add(binary, 'snowmelt', 'zfs', 'zpool')
    bundle.add(shutil.which('ps'))
    bundle.add_perl()
    shutil.copy(tools.directory() + '/sanoid/usr/sbin/syncoid', os.path.join(bundle.top, 'bin'))
    with tarfile.open(os.path.join(share, 'bundle.tar'), 'w') as tar:
        tar.add(bundle.top, 'bundle')


def judge(share, name):
    path = os.path.join(share, 'out', name + '.json')
    if not os.path.exists(path):
        return 'the machine did not get to it'
    with open(path) as f:
        answer = json.load(f)
    if answer['error']:
        return answer['error']
    for what, real, ours in answer['pairs']:
        real, ours = (os.path.join(share, os.path.relpath(path, '/share')) for path in (real, ours))
        with open(ours, 'rb') as f:
            why = manifests.difference(real, f.read())
        if why:
            return '%s: %s' % (what, why)
    return None if answer['pairs'] else 'nothing was compared'


def run(report, binary, scratch):
    if not report.wants('beside'):
        return
    top = os.path.join(scratch, 'beside')
    share = os.path.join(top, 'share')
    os.makedirs(share + '/out')
    pack(binary, top, share)
    env = dict(os.environ, ZFS_VM_MEM='4096', ZFS_VM_CPUS='2')
    ended = subprocess.run([os.path.join(VM, 'run.sh'), share, os.path.join(VM, 'guest-beside.sh'), str(TIMEOUT)],
                           env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    for name in CHECKS:
        report.check('beside ' + name, judge(share, name))
    text = ended.stdout.decode('utf-8', 'replace')
    report.check('beside machine ended well', None if ended.returncode == 0
                 else 'status %d\n%s' % (ended.returncode, text[-3000:]))
