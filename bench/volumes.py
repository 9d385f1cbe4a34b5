"""Volumes over NBD, compared with qemu-nbd and a qcow2 image on the same disk: the same fio jobs for both, alternately.
"""
import json
import os
import subprocess
import time

MIB = 1 << 20
# Name, fio's rw, block size, depth. Each job ends with a flush.
JOBS = (
    ('sequential write 1M', 'write', '1M', 8),
    ('sequential read 1M', 'read', '1M', 8),
    ('random read 4k', 'randread', '4k', 32),
    ('random read 16k', 'randread', '16k', 32),
    ('random write 4k', 'randwrite', '4k', 32),
    ('random write 16k', 'randwrite', '16k', 32),
)


class Served:
    """A process that serves one export on a Unix socket."""

    def __init__(self, socket, command, env, export):
        self.uri = 'nbd+unix:///%s?socket=%s' % (export, socket)
        self.process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 30
        while not os.path.exists(socket):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit('%s does not serve' % command[0])
            time.sleep(0.02)

    def run(self, rw, block, depth, seconds):
        """Bytes and operations per second."""
        done = subprocess.run(
            ['fio', '--name=job', '--ioengine=nbd', '--uri=' + self.uri, '--rw=' + rw, '--bs=' + block,
             '--iodepth=%d' % depth,
             '--runtime=%d' % seconds, '--time_based', '--end_fsync=1', '--refill_buffers', '--randrepeat=1',
             '--output-format=json'],
            capture_output=True, cwd=os.path.dirname(self.uri.split('socket=')[1]))
        if done.returncode != 0:
            raise SystemExit('fio ended with %d: %s' % (done.returncode, done.stderr.decode()[-500:]))
        text = done.stdout.decode()
        job = json.loads(text[text.index('{'):])['jobs'][0]
        if job['error']:
            raise SystemExit('fio failed: %s' % done.stderr.decode()[-500:])
        half = job['read' if 'read' in rw else 'write']
        # The time includes the flush at the end. A server that answers writes too early gains nothing.
        elapsed = max(half['runtime'], job.get('job_runtime', 0)) / 1000
        return half['io_bytes'] / elapsed, half['total_ios'] / elapsed

    def close(self):
        self.process.terminate()
        self.process.wait()


def measure(bench, size, seconds):
    """Our volume is in a pool. The other one is in a qcow2 image with qemu's cache mode `writeback`, which flushes on
    request."""
    melt = bench.home('volumes')
    melt.ok('create', '-V', '%dM' % (size // MIB), '-b', '16K', 'bench/vol')
    image, sockets = os.path.join(bench.dir, 'image.qcow2'), [os.path.join(bench.dir, name)
                                                              for name in ('ours.sock', 'peer.sock')]
    subprocess.run(['qemu-img', 'create', '-q', '-f', 'qcow2', image, '%dM' % (size // MIB)], check=True)
    ours = Served(sockets[0], [melt.binary, 'serve', 'nbd', '--unix', sockets[0], 'bench/vol'], melt.env, 'bench/vol')
    peer = Served(sockets[1], ['qemu-nbd', '-t', '-e', '8', '-f', 'qcow2', '--cache=writeback', '--discard=unmap', '-k',
                               sockets[1], image], None, '')
    try:
        for name, rw, block, depth in JOBS:
            best = [max(side.run(rw, block, depth, seconds) for _ in range(bench.size['repeats']))
                    for side in (ours, peer)]
            at, unit, scale = (0, 'MB/s', 1e6) if block == '1M' else (1, 'kIOPS', 1e3)
            a, b = best[0][at] / scale, best[1][at] / scale
            bench.row('NBD %s, depth %d' % (name, depth), a, unit, b, unit + ' qemu-nbd qcow2', a / b)
    finally:
        ours.close()
        peer.close()
        melt.ok('check', 'bench')
        melt.close()
        os.remove(image)
