"""rsync's own test suite: stock rsync as the client, snowmelt as the daemon and as the server of remote shells.

Each test runs over pipes, and tests of daemons also over TCP. Tests that never use the server are left out.
"""
import glob
import os
import re
import subprocess

# Words in the source of a test that uses the server.
REACHES = ('RSYNC_PEER', 'rsync_path_arg', '--rsync-path', 'rsh_cmd', 'start_test_daemon', 'start_rsyncd',
           'setup_chroot_inner',
           'stdio_daemon', 'rsync_proto', 'rsync://', '--daemon')
# Words in the source of a test that uses a daemon.
REACHES_DAEMON = ('USE_TCP', 'require_tcp', 'start_test_daemon', 'start_rsyncd', 'claim_ports', 'claim_free_port',
                  'setup_chroot_inner', 'stdio_daemon', 'rsync_proto', 'rsync://', '--daemon')
LINE = re.compile(r'^(PASS|FAIL|SKIP|XFAIL) +(\S+)(?: \((.*)\))?$')
STATES = {'PASS': 'pass', 'FAIL': 'fail', 'SKIP': 'skip', 'XFAIL': 'fail'}
TEST_LIMIT = 240
LIMIT = 3600
# Tests that try to win a race stop after this time, earlier than the suite's own five to fifteen seconds.
RACE_SECONDS = 3


def source(world):
    return os.path.join(world.suites, 'rsync')


def tests(world):
    names = []
    for path in sorted(glob.glob(os.path.join(source(world), 'testsuite', '*_test.py'))):
        with open(path, errors='replace') as file:
            text = file.read()
        name = os.path.basename(path).removesuffix('_test.py')
        if any(word in text for word in REACHES):
            names.append('pipe/%s' % name)
        if any(word in text for word in REACHES_DAEMON):
            names.append('tcp/%s' % name)
    return sorted(names)


def run(world, names):
    links = world.path('peer')
    world.run([world.binary, 'shims', '--rsync', links], check=True, stdout=subprocess.DEVNULL)
    found = {}
    for mode in ('pipe', 'tcp'):
        chosen = [name.split('/')[1] for name in names if name.startswith('%s/' % mode)]
        if chosen:
            found.update(run_mode(world, mode, chosen, os.path.join(links, 'rsync')))
    return found


def run_mode(world, mode, names, peer):
    scratch = world.path('rsync', mode)
    os.chmod(scratch, 0o755)
    tree = source(world)
    words = ['python3', os.path.join(tree, 'runtests.py'), '-j', str(os.cpu_count() or 1), '--timeout', str(TEST_LIMIT),
             '--race-timeout', str(RACE_SECONDS), '--tooldir', tree, '--srcdir', tree, '--rsync-bin',
             os.path.join(tree, 'rsync'),
             '--rsync-bin2', peer, *(['--use-tcp'] if mode == 'tcp' else []), *names]
    env = dict(world.env, scratchbase=scratch)
    with world.log(mode) as log:
        world.run(words, stdout=log, stderr=log, timeout=LIMIT, env=env, cwd=tree)
    return results(os.path.join(world.logs, '%s.log' % mode), mode)


def results(log, mode):
    found = {}
    with open(log, errors='replace') as lines:
        for line in lines:
            match = LINE.match(line.rstrip('\n'))
            if match:
                state, name, why = match.groups()
                found['%s/%s' % (mode, name)] = (STATES[state], why or '')
    return found
