"""sanoid's tests of syncoid: a shell script each."""
import os
import subprocess

LIMIT = 240


def tests(world):
    return sorted(name for name in os.listdir(top(world)) if os.path.exists(os.path.join(top(world), name, 'run.sh')))


def top(world):
    return os.path.join(world.suites, 'sanoid/tests/syncoid')


def run(world, names):
    found = {}
    os.makedirs('/var/cache/sanoid', exist_ok=True)
    for name in names:
        with world.log(name) as log:
            try:
                ended = world.run(['bash', 'run.sh'], cwd=os.path.join(top(world), name), stdin=subprocess.DEVNULL, stdout=log,
                                  stderr=log, timeout=LIMIT)
                found[name] = ('pass', '') if ended.returncode == 0 else ('fail', 'exit status %d' % ended.returncode)
            except subprocess.TimeoutExpired:
                found[name] = ('slow', 'it takes more than %d s' % LIMIT)
        world.clear()
    return found
