"""zfs_autobackup's own tests: unittest, with pools in /dev/ram0 and similar devices, and ssh to this machine."""
import os
import re
import shutil
import signal
import subprocess
import sys

LIMIT = 420
RAM = ['/dev/ram%d' % at for at in range(3)]

SSHD = '''HostKey {top}/host
AuthorizedKeysFile {top}/authorized
StrictModes no
PermitRootLogin yes
UsePAM no
PidFile {top}/sshd.pid
MaxStartups 100
SetEnv {env}
'''
SSH = '''Host *
 IdentityFile {top}/id
 StrictHostKeyChecking no
 UserKnownHostsFile /dev/null
 LogLevel ERROR
'''


def source(world):
    return os.path.join(world.suites, 'zfs_autobackup')


def tests(world):
    """FILE.Class.test_name of all tests, in the order of the source."""
    names = []
    folder = os.path.join(source(world), 'tests')
    for file in sorted(os.listdir(folder)):
        if not re.fullmatch(r'test_\w+\.py', file):
            continue
        place = None
        with open(os.path.join(folder, file)) as lines:
            for line in lines:
                begun = re.match(r'class (\w+)', line)
                place = begun.group(1) if begun else place
                test = re.match(r'    def (test\w*)\(', line)
                if test and place:
                    names.append('%s.%s.%s' % (file[:-3], place, test.group(1)))
    return names


def prepare(world):
    world.devices()
    os.makedirs('/run/sshd', exist_ok=True)
    top = world.path('ssh')
    for key in ('id', 'host'):
        subprocess.run(['ssh-keygen', '-q', '-t', 'ed25519', '-N', '', '-f', '%s/%s' % (top, key)], check=True)
    shutil.copy('%s/id.pub' % top, '%s/authorized' % top)
    passed = ' '.join('%s=%s' % (name, world.env[name]) for name in sorted(world.env)
                      if name == 'PATH' or name.startswith('XDG_'))
    with open('/etc/ssh/sshd_config', 'w') as file:
        file.write(SSHD.format(top=top, env=passed))
    with open('/etc/ssh/ssh_config', 'w') as file:
        file.write(SSH.format(top=top))
    world.run(['/usr/sbin/sshd', '-f', '/etc/ssh/sshd_config', '-E', '%s/sshd.log' % top], check=True)
    return '%s/sshd.pid' % top


def fresh_disks():
    for path in RAM:
        if os.path.lexists(path):
            os.unlink(path)
        with open(path, 'wb') as file:
            file.truncate(500 << 20)


def run(world, names):
    if not names:
        return {}
    pid = prepare(world)
    found = {}
    env = dict(world.env, PYTHONDONTWRITEBYTECODE='1', PYTHONPATH=os.path.join(world.suites, 'python'))
    try:
        for file in sorted({name.split('.')[0] for name in names}):
            fresh_disks()
            one_file(world, env, file, [name for name in names if name.split('.')[0] == file], found)
            world.clear()
    finally:
        with open(pid) as text:
            os.kill(int(text.read()), signal.SIGTERM)
    return found


def one_file(world, env, file, names, found):
    with world.log(file) as log:
        try:
            world.run([sys.executable, '-m', 'unittest', '-v', *['tests.%s' % name for name in names]], env=env,
                      cwd=source(world),
                      stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=LIMIT)
        except subprocess.TimeoutExpired:
            pass
    with open(os.path.join(world.logs, '%s.log' % file), errors='replace') as text:
        said = text.read()
    for name in names:
        test, place = name.split('.')[2], name.split('.')[1]
        # A test's output is between its name and its result. The first line of its description may precede it.
        begun = re.search(r'^%s \(tests\.%s\.%s[.)\w]*\)(?:\n.*?)? ?\.\.\.' % (test, file, place), said, re.M)
        if not begun:
            found[name] = ('slow', 'its file takes more than %d s' % LIMIT)
            continue
        following = re.search(r'^test\w* \(tests\.', said[begun.end():], re.M)
        end = begun.end() + following.start() if following else len(said)
        word = re.findall(r'(?:^|\s)(ok|FAIL|ERROR|skipped)\b', said[begun.end():end].split('\n======')[0])
        state = {'ok': 'pass', 'skipped': 'skip'}.get(word[-1] if word else '', 'fail')
        found[name] = (state, "" if word else "it did not end")
