"""Pools in a real distributed object store. Its parts are killed, and writers die, hang and take over from each other.
"""
import os
import random
import shutil
import signal
import subprocess
import threading

from .ceph_cluster import ACCESS, OSDS, RGW, SECRET, Bucket, Cluster, until
from .report import Failed
from .snowmelt import Snowmelt

MIB = 1 << 20
PIECE = MIB
SMALL = 32 * MIB
ADDRESS = 's3://bucket/tank'
RACES, RACERS = 20, 16
TIMEOUT = 1200      # maximum duration of a command with GiBs of data on a busy machine, in seconds


class Machine(Snowmelt):
    """A simulated machine with its own home directory, which knows the gateway."""

    def __init__(self, binary, scratch, name):
        super().__init__(binary, os.path.join(scratch, name))
        self.env.update(AWS_ENDPOINT_URL='http://127.0.0.1:%d' % RGW, AWS_ACCESS_KEY_ID=ACCESS,
                        AWS_SECRET_ACCESS_KEY=SECRET,
                        AWS_REGION='us-east-1', SNOWMELT_MACHINE=name)

    def content(self, snapshot):
        """Guid of a snapshot, and a line with all attributes for each file."""
        guid = self.ok('get', '-Hp', '-o', 'value', 'guid', snapshot).out
        return guid + self.ok('manifest', snapshot, timeout=TIMEOUT).out

    def transfer(self, source, sent, received):
        """A `send` on another machine into a `receive` on this one."""
        Flow(source, sent, self, received).finish()

    def clean(self, pool):
        why = self.checked(pool)
        if why:
            raise Failed(why)


class Flow:
    """A stream between two machines. The caller decides how much of it is passed on."""

    def __init__(self, source, sent, target, received):
        self.words = 'send %s | receive %s' % (' '.join(sent), ' '.join(received))
        self.sender = source.start(['send', *sent])
        self.receiver = target.start(['receive', *received], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        self.passed = 0

    def go_on(self, length=None):
        """Passes on `length` bytes, or everything. Returns False if the receiver does not accept more."""
        left = length
        while left is None or left > 0:
            piece = self.sender.stdout.read(PIECE if left is None else min(PIECE, left))
            if not piece:
                break
            try:
                self.receiver.stdin.write(piece)
                self.receiver.stdin.flush()
            except BrokenPipeError:
                return False
            self.passed += len(piece)
            left = None if left is None else left - len(piece)
        return True

    def end(self):
        """Passes on the rest. Returns the receiver's status and output."""
        self.go_on()
        try:
            self.receiver.stdin.close()
        except BrokenPipeError:
            pass
        timer = threading.Timer(TIMEOUT, self.receiver.kill)
        timer.start()
        said = self.receiver.stderr.read().decode()
        status = self.receiver.wait()
        timer.cancel()
        self.give_up()
        return status, said

    def finish(self):
        status, said = self.end()
        if status != 0:
            raise Failed('%s gave %d: %s' % (self.words, status, said))

    def give_up(self):
        for child in (self.sender, self.receiver):
            child.kill()
            child.wait()
        self.sender.stdout.close()
        self.sender.stderr.close()


class Scenario:
    """Steps that build on each other."""

    def __init__(self, binary, scratch, large):
        self.total = 4096 * MIB if large else 192 * MIB
        # The data must fit on the disk three times. With --large only half of it is random.
        self.random_part = 2 if large else 1
        self.scratch, self.cluster = scratch, Cluster(os.path.join(scratch, 'cluster'), 32 << 30)
        self.source, self.first, self.second, self.reader, self.fresh = (
            Machine(binary, scratch, name) for name in ('source', 'first', 'second', 'reader', 'fresh'))
        self.expected = {}

    def steps(self):
        return [self.cluster_starts, self.one_winner, self.osds_die_while_receiving, self.writer_killed,
                self.writer_hangs,
                self.reader_follows, self.osd_dies_while_scrubbing, self.restored_elsewhere]

    def cluster_starts(self):
        """Three OSDs, three copies, and the streams that will be received."""
        self.cluster.start()
        self.bucket = Bucket('bucket')
        self.fill()

    def fill(self):
        top, randoms = os.path.join(self.scratch, 'files'), random.Random(1)
        os.mkdir(top)
        self.source.create_pool('src')
        for name, size in (('data', self.total), ('small', SMALL)):
            for at in range(size // (8 * MIB)):
                with open(os.path.join(top, '%s%04d' % (name, at)), 'wb') as f:
                    f.write(b''.join(randoms.randbytes(65536 // self.random_part).ljust(65536, b'\0')
                                     for _ in range(128)))
            self.source.ok('import', top, 'src/%s@one' % name, timeout=TIMEOUT)
            shutil.rmtree(top)
            os.mkdir(top)
            self.expected[name] = self.source.content('src/%s@one' % name)
        with open(os.path.join(top, 'more'), 'wb') as f:
            f.write(randoms.randbytes(5 * MIB))
        self.source.ok('import', top, 'src/small@two')
        self.expected['small@two'] = self.source.content('src/small@two')
        shutil.rmtree(top)

    def one_winner(self):
        """Checks that the gateway honours create-only puts, one after another and many at once. The fence depends on
        that."""
        answers = self.bucket.create('tried', b'1'), self.bucket.create('tried', b'2')
        if answers != (200, 412):
            raise Failed('of two creations of one object the answers were %d and %d' % answers)
        for at in range(RACES):
            start, won = threading.Barrier(RACERS), []

            def race(racer):
                start.wait()
                won.append(self.bucket.create('race%d' % at, b'%d' % racer) == 200)
            racers = [threading.Thread(target=race, args=(racer,)) for racer in range(RACERS)]
            for racer in racers:
                racer.start()
            for racer in racers:
                racer.join()
            if won.count(True) != 1 or len(won) != RACERS:
                raise Failed('%d of %d that created one object were told it is theirs' % (won.count(True), RACERS))
        self.first.ok('pool', 'create', 'tank', ADDRESS)
        if self.cluster.copies() != OSDS:
            raise Failed('an object has %s copies, not %d' % (self.cluster.copies(), OSDS))

    def stored(self):
        return sum(self.bucket.sizes().values())

    def osds_die_while_receiving(self):
        """Each OSD in turn is killed, and restarted after something was stored without it."""
        flow = Flow(self.source, ['src/data@one'], self.first, ['tank/data'])
        step = self.total // OSDS
        try:
            for osd in range(OSDS):
                self.cluster.kill(osd)
                before = self.stored()
                # More than the writer keeps in memory: something is stored, or the receiver has ended.
                if not flow.go_on(step):
                    break
                until('something is stored while osd.%d is dead' % osd, lambda: self.stored() > before
                      or flow.receiver.poll() is not None, 300)
                self.cluster.revive(osd)
                self.cluster.all_up()
            flow.finish()
        finally:
            flow.give_up()
        self.same(self.first, 'tank/data@one', 'data')
        self.first.clean('tank')

    def same(self, machine, snapshot, name):
        if machine.content(snapshot) != self.expected[name]:
            raise Failed('%s holds something else than %s did' % (snapshot, name))

    def writer_killed(self):
        """The writer is killed in the middle. Another machine takes over the pool and continues from the token."""
        flow = Flow(self.source, ['src/small@one'], self.first, ['-s', 'tank/killed'])
        try:
            flow.go_on(SMALL * 2 // 3)
            # The data so far is committed in a txg.
            until('the receive can be resumed', lambda: self.first.run('pool', 'sync', 'tank')
                  and self.first.token('tank/killed'))
        finally:
            flow.give_up()
        refused = self.second.run('pool', 'import', ADDRESS)
        if refused.status != 1 or 'belongs to first' not in refused.text():
            raise Failed('it should belong to the first machine: %s' % refused)
        self.second.ok('pool', 'import', '-f', ADDRESS)
        self.second.clean('tank')
        token = self.second.token('tank/killed')
        if not token:
            raise Failed('the other machine finds no token')
        self.second.transfer(self.source, ['-t', token], ['-s', 'tank/killed'])
        self.same(self.second, 'tank/killed@one', 'small')
        late = self.first.run('snapshot', 'tank@late')
        if late.status == 0:
            raise Failed('the machine that lost the pool wrote to it')
        self.second.clean('tank')

    def writer_hangs(self):
        """The writer hangs in the middle. Another machine takes over and writes. When the first continues, it stops
        with a message."""
        flow = Flow(self.source, ['src/small@one'], self.second, ['tank/hung'])
        try:
            flow.go_on(SMALL // 2)
            flow.receiver.send_signal(signal.SIGSTOP)
            self.first.ok('pool', 'import', '-f', ADDRESS)
            self.first.transfer(self.source, ['src/small@one'], ['tank/after'])
            before = self.first.state('tank')
            flow.receiver.send_signal(signal.SIGCONT)
            status, said = flow.end()
        finally:
            flow.give_up()
        if status != 1 or 'taken over by first' not in said:
            raise Failed('the one that hung ended with %d: %s' % (status, said))
        if self.first.state('tank') != before:
            raise Failed('the one that hung changed the pool')
        self.same(self.first, 'tank/after@one', 'small')
        self.first.clean('tank')

    def reader_follows(self):
        """Another machine reads, and sees the snapshots of the writer."""
        self.reader.ok('pool', 'import', '-o', 'readonly=on', ADDRESS)
        if self.reader.state('tank') != self.first.state('tank'):
            raise Failed('the reader sees something else')
        self.first.transfer(self.source, ['-i', '@one', 'src/small@two'], ['tank/after'])
        self.first.ok('destroy', '-r', 'tank/killed')
        if self.reader.state('tank') != self.first.state('tank'):
            raise Failed('the reader does not follow')
        self.same(self.reader, 'tank/after@two', 'small@two')
        refused = self.reader.run('snapshot', 'tank@mine')
        if refused.status == 0:
            raise Failed('the reader wrote')

    def osd_dies_while_scrubbing(self):
        """All stored data verifies, with one OSD dead and then with all OSDs."""
        self.cluster.kill(1)
        self.first.ok('pool', 'scrub', '-w', 'tank', timeout=TIMEOUT)
        self.cluster.revive(1)
        self.cluster.all_up()
        self.first.ok('pool', 'scrub', '-w', 'tank', timeout=TIMEOUT)
        status = self.first.ok('pool', 'status', 'tank').out.decode()
        if 'with 0 errors' not in status or 'errors: No known data errors' not in status:
            raise Failed(status)

    def restored_elsewhere(self):
        """A machine that only reads the bucket sends everything into a pool of another machine."""
        self.fresh.create_pool('restored')
        for dataset, name in (('data@one', 'data'), ('after@two', 'small@two')):
            target = 'restored/' + dataset.split('@')[0]
            self.fresh.transfer(self.reader, ['tank/' + dataset], [target])
            self.same(self.fresh, 'restored/' + dataset, name)
        self.fresh.clean('restored')
        self.first.ok('pool', 'destroy', 'tank')
        left = [key for key in self.bucket.sizes() if key.startswith('tank/')]
        if left:
            raise Failed('the pool is destroyed, and these are left: %s' % left)


def run(report, binary, scratch, args):
    scenario = Scenario(binary, scratch, args.large)
    try:
        for step in scenario.steps():
            try:
                step()
                report.check('ceph %s' % step.__name__.replace('_', ' '), None)
            except Failed as e:
                # The other steps depend on this one.
                report.check('ceph %s' % step.__name__.replace('_', ' '), e)
                break
    finally:
        scenario.cluster.stop()
