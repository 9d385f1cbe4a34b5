"""sanoid's tests of syncoid: one shell script each.

One of them sets the clock. Its programs get a simulated clock from libfaketime instead.
"""
import glob
import os
import subprocess

LIMIT = 240
SETS_CLOCK = '011_'
# Exit status of a skipped script in this suite.
SKIPPED = 130

# Replaces `date --utc --set @SECONDS`, as the suite calls it: only the simulated clock is changed.
DATE = '''#!/bin/bash
for word in "$@"; do
  case $word in @*) printf '%+ds\\n' $((${word#@} - $(LD_PRELOAD= /bin/date +%s))) > "$FAKETIME_TIMESTAMP_FILE"; exit ;; esac
done
exec /bin/date "$@"
'''


def tests(world):
    if not os.path.isdir(top(world)):
        return []
    return sorted(name for name in os.listdir(top(world)) if os.path.exists(os.path.join(top(world), name, 'run.sh')))


def top(world):
    return os.path.join(world.suites, 'sanoid/tests/syncoid')


def run(world, names):
    found = {}
    os.makedirs('/var/cache/sanoid', exist_ok=True)
    for name in names:
        env = own_clock(world) if name.startswith(SETS_CLOCK) else world.env
        with world.log(name) as log:
            try:
                ended = world.run(['bash', 'run.sh'], cwd=os.path.join(top(world), name), stdin=subprocess.DEVNULL,
                                  stdout=log,
                                  stderr=log, timeout=LIMIT, env=env)
                found[name] = state(ended.returncode)
            except subprocess.TimeoutExpired:
                found[name] = ('slow', 'it takes more than %d s' % LIMIT)
        world.clear()
    return found


def state(status):
    if status == 0:
        return ('pass', '')
    return ('skip' if status == SKIPPED else 'fail', 'exit status %d' % status)


def own_clock(world):
    """The environment of a test that would set the clock. Unchanged if libfaketime is missing."""
    libraries = sorted(glob.glob('/usr/lib/*/faketime/libfaketime.so.1'))
    if not libraries:
        return world.env
    place = world.path('clock')
    for name, text in (('date', DATE), ('timedatectl', '#!/bin/sh\n'), ('systemctl', '#!/bin/sh\n')):
        with open(os.path.join(place, name), 'w') as file:
            file.write(text)
        os.chmod(file.name, 0o755)
    offset = os.path.join(place, 'offset')
    with open(offset, 'w') as file:
        file.write('+0s\n')
    return dict(world.env, PATH='%s:%s' % (place, world.env['PATH']), LD_PRELOAD=libraries[0], INVASIVE_TESTS='1',
                FAKETIME_TIMESTAMP_FILE=offset, FAKETIME_NO_CACHE='1', FAKETIME_DONT_FAKE_MONOTONIC='1',
                FAKETIME_DONT_RESET='1')
