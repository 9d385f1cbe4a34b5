"""zrepl, if it is installed: a daemon that replicates to itself with its own protocol, using our `zfs`."""
import os
import subprocess
import time

from .report import Failed
from .tools_world import World

CONFIG = '''
global:
  logging: [{{type: stdout, level: info, format: human}}]
  control: {{sockpath: {top}/zrepl/control}}
  serve: {{stdinserver: {{sockdir: {top}/zrepl/stdin}}}}
jobs:
- name: sink
  type: sink
  root_fs: well/sink
  serve: {{type: local, listener_name: sink}}
  recv: {{placeholder: {{encryption: "off"}}}}
- name: push
  type: push
  connect: {{type: local, listener_name: sink, client_identity: here}}
  filesystems: {{"pond/home<": true}}
  send: {{compressed: true, large_blocks: true, embedded_data: true, send_properties: true}}
  replication: {{protection: {{initial: guarantee_resumability, incremental: guarantee_resumability}}}}
  snapshotting: {{type: manual}}
  pruning:
    keep_sender: [{{type: last_n, count: 2}}]
    keep_receiver: [{{type: last_n, count: 3}}]
'''


class Zrepl:
    def __init__(self, report, binary, scratch, program):
        self.program, self.binary, self.scratch = program, binary, os.path.join(scratch, 'zrepl')

    def jobs(self):
        yield 'zrepl push', self.push

    def world(self, name):
        return World(self.binary, os.path.join(self.scratch, name))

    def push(self, world):
        d = world.top + '/zrepl'
        os.makedirs(d + '/stdin', mode=0o700)
        os.chmod(d, 0o700)
        config = d + '/config.yml'
        with open(config, 'w') as f:
            f.write(CONFIG.format(top=world.top))
        world.here.zfs('create', '-o', 'mountpoint=none', 'well/sink')
        for name in ('pond/home', 'pond/home/sub'):
            world.change(name, 'one')
        world.here.zfs('create', '-s', '-V', '4M', 'pond/home/vol')
        world.here.zfs('snapshot', 'pond/home/vol@one')
        log = d + '/log'
        with open(log, 'w') as f:
            daemon = subprocess.Popen([self.program, '--config', config, 'daemon'], stdin=subprocess.DEVNULL, stdout=f,
                                      stderr=f,
                                      env=world.here.env, cwd=world.top)
        try:
            self.until(log, lambda: os.path.exists(d + '/control'), 'the daemon starts')
            for number, name in enumerate(('one', 'two', 'three', 'four')):
                if name != 'one':
                    world.change('pond/home', name)
                    world.change('pond/home/sub', name)
                    world.here.zfs('snapshot', 'pond/home/vol@' + name)
                self.until(log, lambda: self.is_idle(log, number + 1), 'round %d is over' % number)
                world.here.tool_ok([self.program, '--config', config, 'signal', 'wakeup', 'push'])
                self.until(log, lambda: self.arrived(world, name), 'snapshot %s arrives' % name)
            # Pruning comes last.
            self.until(log, lambda: all(len(world.here.of(n)) == 2 for n in ('pond/home', 'pond/home/sub')),
                       'the source is pruned')
            self.until(log, lambda: len(world.here.of('well/sink/here/pond/home/sub')) == 3, 'the target is pruned')
        finally:
            daemon.terminate()
            daemon.wait()
        for name in ('', '/sub', '/vol'):
            world.same('pond/home' + name, 'well/sink/here/pond/home' + name, 2)
        with open(log) as f:
            errors = [line for line in f if '[ERRO]' in line]
        if errors:
            raise Failed('the daemon complains:\n%s' % ''.join(errors[:5]))

    def is_idle(self, log, times):
        """Whether the job has become idle this many times. Wake-ups before that are refused."""
        with open(log) as f:
            return f.read().count('wait for wakeups') >= times

    def arrived(self, world, name):
        for dataset in ('', '/sub', '/vol'):
            rows = world.here.tool(['zfs', 'list', '-Ho', 'name', 'well/sink/here/pond/home%s@%s' % (dataset, name)])
            if rows.status != 0:
                return False
        return True

    def until(self, log, holds, what):
        deadline = time.monotonic() + 60
        while not holds():
            if time.monotonic() > deadline:
                with open(log) as f:
                    raise Failed('in vain waited until %s:\n%s' % (what, ''.join(f.readlines()[-12:])))
            time.sleep(0.2)
