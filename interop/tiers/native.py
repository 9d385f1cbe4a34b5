"""Datasets that snowmelt and real ZFS change alternately: each reads the other's data and continues from it."""
import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time

from . import manifests
from .report import Failed
from .snowmelt import Snowmelt
from .vm import VM, Zstream

sys.path.insert(0, VM)
from mutate import Mutator      # noqa: E402

FS, VOLUME = 'pond/fs', 'pond/vol'
IMAGE_BYTES = 24 << 20
ROUNDS, MANY_ROUNDS = 8, 30
OPS = 60
TIMEOUT = 2400
# Fields that an import does not keep, or that reading has changed since.
NOT_IMPORTED = ('ino', 'data', 'flags', 'projid', 'atime')


class Native:
    def __init__(self, report, binary, scratch, rounds):
        self.report, self.rounds = report, rounds
        self.top = os.path.join(scratch, 'native')
        self.share, self.source, self.image = (os.path.join(self.top, n) for n in ('share', 'source', 'image'))
        for d in (self.share + '/in', self.share + '/out', self.source):
            os.makedirs(d)
        self.melt = Snowmelt(binary, os.path.join(self.top, 'home'))
        self.zstream = Zstream()

    def run(self):
        guest = self.guest = self.start_guest()
        try:
            self.melt.create_pool('pond')
            Mutator(self.source, 1).run(3 * OPS)
            with open(self.image, 'wb') as f:
                f.truncate(IMAGE_BYTES)
            self.change_image(1)
            base = None
            for number in range(self.rounds):
                base = self.round(number, base)
                self.report.check('native round %d' % number, None)
            self.report.check('native pool check', self.melt.checked('pond'))
            self.order(self.rounds, {'end': True})
            status = self.answer(self.rounds, guest)['status']
            self.report.check('native scrub', None if 'No known data errors' in status and 'with 0 errors' in status
                              else status)
        except Failed as e:
            self.report.check('native round', e)
        finally:
            # Not a kill: run.sh shuts the machine down when it is asked to end.
            guest.terminate()
            guest.wait()

    def start_guest(self):
        env = dict(os.environ, ZFS_VM_MEM='3072', ZFS_VM_CPUS='2')
        guest = subprocess.Popen([os.path.join(VM, 'run.sh'), self.share, os.path.join(VM, 'guest-native.sh'),
                                  str(TIMEOUT)],
                                 env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.said = []
        threading.Thread(target=lambda: self.said.append(guest.stdout.read()), daemon=True).start()
        return guest

    def order(self, number, what):
        path = '%s/in/%d.json' % (self.share, number)
        with open(path + '.part', 'w') as f:
            json.dump(what, f)
        os.rename(path + '.part', path)

    def answer(self, number, guest):
        path = '%s/out/%d.json' % (self.share, number)
        while not os.path.exists(path):
            if guest.poll() is not None:
                time.sleep(1)
                raise Failed('the machine ended: %s' % b''.join(self.said)[-3000:].decode('utf-8', 'replace'))
            time.sleep(0.1)
        with open(path) as f:
            return json.load(f)

    # ---- one round -----------------------------------------------------------------------

    def round(self, number, base):
        host = 'host%d' % number
        self.melt.ok('import', '-F', self.source, '%s@%s' % (FS, host))
        self.melt.ok('import', '-F', self.image, '%s@%s' % (VOLUME, host))
        self.as_source(host, number)
        for dataset, kind in ((FS, 'fs'), (VOLUME, 'vol')):
            path = '%s/in/%d.%s' % (self.share, number, kind)
            flags = ['-L', '-e', '-c'] if number % 2 else []
            since = ['-i', '@' + base] if base else []
            self.melt.send(path, *flags, *since, '%s@%s' % (dataset, host))
            if self.zstream.command:
                self.say('round %d %s: zstream dump' % (number, kind), self.zstream.refuses(path))
        self.order(number, {'seed': 100 + number, 'ops': OPS})
        answer = self.answer(number, self.guest)
        if answer['error']:
            raise Failed('round %d: %s' % (number, answer['error']))
        out = '%s/out/%d' % (self.share, number)
        self.same('round %d: ZFS reads what we wrote' % number, out + '.before', '%s@%s' % (FS, host))
        self.same('round %d: ZFS reads our volume' % number, out + '.volume', '%s@%s' % (VOLUME, host))
        self.melt.receive(FS, out + '.fs')
        self.melt.receive(VOLUME, out + '.vol')
        theirs = 'zfs%d' % number
        self.same('round %d: we read what ZFS wrote' % number, out + '.after', '%s@%s' % (FS, theirs))
        self.same('round %d: we read the volume ZFS wrote' % number, out + '.volume-after', '%s@%s' % (VOLUME, theirs))
        # Restored into a directory and an image, which are then changed.
        shutil.rmtree(self.source)
        self.melt.ok('restore', '%s@%s' % (FS, theirs), self.source)
        Mutator(self.source, 1000 + number).run(OPS)
        os.unlink(self.image)
        self.melt.ok('restore', '%s@%s' % (VOLUME, theirs), self.image)
        self.change_image(1000 + number)
        return theirs

    def change_image(self, seed):
        rnd = random.Random(seed)
        with open(self.image, 'r+b') as f:
            for _ in range(20):
                f.seek(rnd.randrange(IMAGE_BYTES - 70_000))
                f.write(rnd.randbytes(rnd.randrange(1, 65_536)))

    def say(self, what, why):
        if why:
            raise Failed('%s: %s' % (what, why))

    def same(self, what, truth, snapshot):
        self.say(what, manifests.difference(truth, self.melt.ok('manifest', snapshot).out))

    def as_source(self, snapshot, number):
        """Checks that the snapshot equals the directory."""
        mine = os.path.join(self.top, 'source.manifest')
        with open(mine, 'wb') as f:
            subprocess.run([sys.executable, os.path.join(VM, 'manifest.py'), 'fs', self.source], stdout=f, check=True)
        with open(mine, encoding='utf-8', errors='surrogateescape') as f:
            lines = [comparable(line) for line in f if line.strip()]
        with open(mine, 'w', encoding='utf-8', errors='surrogateescape') as f:
            f.write('\n'.join(lines))
        got = self.melt.ok('manifest', '%s@%s' % (FS, snapshot)).out.decode('utf-8', 'surrogateescape')
        self.say('round %d: import' % number, manifests.difference(
            mine, [comparable(line) for line in got.split('\n') if line.strip()]))


def comparable(line):
    entry = json.loads(line)
    for key in NOT_IMPORTED:
        entry.pop(key, None)
    if entry['type'] == 'd':
        entry.pop('size', None)
    return json.dumps(entry)


def run(report, binary, scratch, args):
    if not report.wants('native'):
        return
    native = Native(report, binary, scratch, MANY_ROUNDS if args.large else ROUNDS)
    native.run()
