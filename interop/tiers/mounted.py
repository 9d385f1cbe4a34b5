"""A filesystem of a fresh pool, mounted through FUSE by a separate process."""
import os
import shutil
import signal
import subprocess
import time

from .report import Failed
from .snowmelt import Snowmelt

WAIT = 60       # maximum seconds until a mount appears or disappears


class Mounted:
    def __init__(self, binary, top, dataset='pond/fs', pool=(), options=()):
        self.melt = Snowmelt(binary, os.path.join(top, 'home'))
        self.dir, self.dataset, self.server = os.path.join(top, 'mnt'), dataset, None
        self.log = os.path.join(top, 'server.log')
        os.makedirs(self.dir)
        self.melt.ok('pool', 'create', dataset.split('/')[0], *pool)
        self.melt.ok('create', *options, dataset)

    def is_mounted(self):
        with open('/proc/self/mountinfo') as f:
            return any(line.split(' ')[4] == self.dir for line in f)

    def answers(self):
        """Whether the mount responds. The mount of a killed server still exists but does not respond."""
        try:
            os.statvfs(self.dir)
        except OSError:
            return False
        return self.is_mounted()

    def mount(self):
        with open(self.log, 'ab') as log:
            self.server = self.melt.start(['mount', '--foreground', self.dataset, self.dir], stdout=log, stderr=log)
        self.wait('mount', lambda: self.answers() or self.server.poll() is not None)
        if self.server.poll() is not None:
            raise Failed('mount ended with %s: %s' % (self.server.returncode, self.said()))

    def unmount(self):
        self.melt.ok('unmount', self.dataset)
        if self.server.wait(WAIT) != 0:
            raise Failed('the server ended with %s: %s' % (self.server.returncode, self.said()))

    def remount(self):
        self.unmount()
        self.mount()

    def kill(self):
        """Kills the server without warning. Its mount stays and is visible to all."""
        self.server.send_signal(signal.SIGKILL)
        self.server.wait()

    def path(self, *names):
        return os.path.join(self.dir, *names)

    def make_dir(self, name):
        path = self.path(name)
        os.makedirs(path, exist_ok=True)
        return path

    def said(self):
        with open(self.log, errors='replace') as f:
            return f.read()[-2000:]

    def checked(self):
        return self.melt.checked(self.dataset.split('/')[0])

    @staticmethod
    def wait(what, holds):
        deadline = time.monotonic() + WAIT
        while not holds():
            if time.monotonic() > deadline:
                raise Failed('%s: not in %d seconds' % (what, WAIT))
            time.sleep(0.02)

    def close(self):
        if self.server and self.server.poll() is None:
            self.server.kill()
            self.server.wait()
        while self.is_mounted():
            if subprocess.run(['umount', '-l', self.dir]).returncode:
                break
        shutil.rmtree(os.path.dirname(self.dir), ignore_errors=True)
