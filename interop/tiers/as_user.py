"""Operations of an ordinary user on a mount. Runs as that user, with the binary and the user's directory."""
import os
import subprocess
import sys

BINARY, TOP = sys.argv[1:3]
ENV = {'HOME': TOP, 'XDG_RUNTIME_DIR': TOP, 'XDG_DATA_HOME': os.path.join(TOP, 'data'), 'PATH': os.environ['PATH'],
       'TZ': 'UTC'}


def snowmelt(*args, status=0):
    done = subprocess.run([BINARY, *args], env=ENV, cwd=TOP, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=60)
    said = done.stdout.decode()
    if done.returncode != status:
        sys.exit('snowmelt %s gave %d: %s' % (' '.join(args), done.returncode, said))
    return said


def main():
    if os.geteuid() == 0:
        sys.exit('this is for ordinary users')
    mnt = os.path.join(TOP, 'mnt')
    os.mkdir(mnt)
    snowmelt('pool', 'create', 'mine')
    snowmelt('create', 'mine/fs')
    try:
        snowmelt('mount', 'mine/fs', mnt)
        stat = os.stat(mnt)
        if stat.st_uid != os.geteuid():
            sys.exit('the root of a new filesystem belongs to %d' % stat.st_uid)
        path = os.path.join(mnt, 'file')
        with open(path, 'w') as f:
            f.write('mine')
            f.flush()
            os.fsync(f.fileno())
        os.chmod(path, 0o4755)
        try:
            os.mknod(os.path.join(mnt, 'device'), 0o20600, os.makedev(1, 3))
            sys.exit('a device was made')
        except PermissionError:
            pass
        snowmelt('snapshot', 'mine/fs@one')
        with open(os.path.join(mnt, '.zfs/snapshot/one/file')) as f:
            if f.read() != 'mine':
                sys.exit('the snapshot holds something else')
        with open('/proc/self/mountinfo') as f:
            line = next(line for line in f if line.split(' ')[4] == mnt)
        if 'nosuid' not in line or 'nodev' not in line:
            sys.exit('mounted with setuid bits or devices: %s' % line)
        with open(path):
            if 'busy' not in snowmelt('unmount', 'mine/fs', status=1):
                sys.exit('it should be busy')
        snowmelt('unmount', 'mine/fs')
        snowmelt('mount', '-o', 'ro', 'mine/fs', mnt)
        with open(path) as f:
            if f.read() != 'mine':
                sys.exit('the file holds something else')
        snowmelt('unmount', mnt)
        snowmelt('check', 'mine')
    finally:
        with open('/proc/self/mountinfo') as f:
            if any(line.split(' ')[4] == mnt for line in f):
                subprocess.run(['fusermount3', '-uz', mnt])


if __name__ == '__main__':
    main()
