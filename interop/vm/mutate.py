#!/usr/bin/env python3
"""Changes a directory tree at random: the same seed and the same tree give the same changes.

  mutate.py DIR SEED COUNT

Files of every size, holes, appends, truncations, overwrites in the middle, renames of files and directories (also onto
others), hard links, symbolic links, special files, modes, owners, times, small and large extended attributes, and
removals of whole directories.
"""
import os
import random
import shutil
import stat
import sys

ODD = ['plain', 'with space', 'ünï', 'dot.', '-dash', 'x' * 200, "quo'te", 'tab\there']


class Mutator:
    def __init__(self, top, seed):
        self.top, self.random = os.fsencode(top), random.Random(seed)
        self.clock = 1_600_000_000 + seed * 1000

    def look(self):
        """Lists everything, sorted: directories, regular files, all others."""
        self.dirs, self.files, self.rest = [self.top], [], []
        for where, dirs, names in os.walk(self.top):
            dirs.sort()
            self.dirs += [os.path.join(where, d) for d in dirs if not os.path.islink(os.path.join(where, d))]
            for name in sorted(names):
                path = os.path.join(where, name)
                (self.files if stat.S_ISREG(os.lstat(path).st_mode) else self.rest).append(path)
        self.dirs.sort()
        self.files.sort()
        self.rest.sort()

    def new_name(self):
        where = self.random.choice(self.dirs)
        return os.path.join(where, ('%s-%d' % (self.random.choice(ODD), self.random.randrange(10 ** 6))).encode())

    def some(self, what):
        return self.random.choice(what) if what else None

    def content(self, most):
        size = self.random.choice([0, 1, 511, 512, 513, 4096, 100_000, 131_072, 131_073, 400_000,
                                   self.random.randrange(most)])
        kind = self.random.randrange(3)
        if kind == 0:
            return self.random.randbytes(size)
        return (b'%d ' % self.random.randrange(1000) * (size // 2 + 1))[:size] if kind == 1 else bytes(size)

    def times(self, path):
        self.clock += 7
        t = self.clock * 10 ** 9 + self.random.randrange(10 ** 9)
        os.utime(path, ns=(t, t + 12345), follow_symlinks=False)

    def make_file(self):
        path = self.new_name()
        with open(path, 'wb') as f:
            f.write(self.content(300_000))
        self.times(path)

    def make_sparse(self):
        path = self.new_name()
        with open(path, 'wb') as f:
            for _ in range(self.random.randrange(1, 4)):
                f.seek(self.random.randrange(3_000_000))
                f.write(self.content(50_000))
            f.truncate(self.random.randrange(4_000_000))

    def make_dir(self):
        path = self.new_name()
        os.mkdir(path, 0o700 | self.random.randrange(0o100))
        if self.random.randrange(4) == 0:
            for i in range(self.random.randrange(60)):
                with open(os.path.join(path, b'file-%d' % i), 'wb') as f:
                    f.write(b'%d\n' % i)

    def make_link(self):
        target = self.random.choice([b'short', b'../up', b'/abs/olute', b'y' * 60,
                                     b'z' * self.random.randrange(61, 1000)])
        os.symlink(target, self.new_name())

    def make_special(self):
        path = self.new_name()
        kind = self.random.choice([stat.S_IFIFO, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFSOCK])
        os.mknod(path, kind | 0o640, os.makedev(self.random.randrange(1, 200), self.random.randrange(250)))

    def hard_link(self):
        if path := self.some(self.files):
            os.link(path, self.new_name())

    def overwrite(self):
        if path := self.some(self.files):
            with open(path, 'r+b') as f:
                f.seek(self.random.randrange(os.path.getsize(path) + 1))
                f.write(self.content(60_000))

    def append(self):
        if path := self.some(self.files):
            with open(path, 'ab') as f:
                f.write(self.content(200_000))

    def truncate(self):
        if path := self.some(self.files):
            os.truncate(path, self.random.randrange(2 * os.path.getsize(path) + 2))

    def replace(self):
        """Replaces a file as editors do: a new file under the old name."""
        if path := self.some(self.files):
            new = self.new_name()
            with open(path, 'rb') as f, open(new, 'wb') as g:
                g.write(f.read() + b'edited\n')
            os.rename(new, path)

    def rename(self):
        if path := self.some(self.files + self.rest):
            os.rename(path, self.new_name())

    def rename_onto(self):
        a, b = self.some(self.files), self.some(self.files)
        if a and a != b:
            os.rename(a, b)

    def rename_dir(self):
        if path := self.some(self.dirs[1:]):
            target = self.new_name()
            if not target.startswith(path + b'/'):
                os.rename(path, target)

    def swap_names(self):
        """Log rotation: the old file gets another name, and a new file takes its name."""
        if path := self.some(self.files):
            os.rename(path, self.new_name())
            with open(path, 'wb') as f:
                f.write(self.content(30_000))

    def remove(self):
        if path := self.some(self.files + self.rest):
            os.unlink(path)

    def remove_dir(self):
        if len(self.dirs) > 4:
            shutil.rmtree(self.random.choice(self.dirs[1:]))

    def change_mode(self):
        path = self.random.choice(self.dirs + self.files)
        os.chmod(path, self.random.randrange(0o10000) | 0o700)

    def change_owner(self):
        path = self.random.choice(self.dirs + self.files + self.rest)
        os.chown(path, self.random.randrange(70_000), self.random.randrange(70_000), follow_symlinks=False)

    def change_times(self):
        self.times(self.random.choice(self.dirs + self.files + self.rest))

    def set_xattr(self):
        path = self.random.choice(self.dirs + self.files)
        size = self.random.choice([0, 5, 100, 300, 1000])
        os.setxattr(path, b'user.x%d' % self.random.randrange(5), self.random.randbytes(size))

    def remove_xattr(self):
        path = self.random.choice(self.dirs + self.files)
        if names := sorted(os.listxattr(path)):
            os.removexattr(path, self.random.choice(names))

    OPS = [make_file] * 8 + [make_sparse, make_link, make_special, hard_link] * 2 + [make_dir] * 3 + [
        overwrite, append, truncate, replace, rename, set_xattr] * 3 + [
        rename_onto, rename_dir, swap_names, change_mode, change_owner, change_times, remove_xattr,
        remove] * 2 + [remove_dir]

    def run(self, count):
        for _ in range(count):
            self.look()
            op = self.random.choice(self.OPS)
            op(self)
        # Comparing reads the files, so access times must not matter.
        self.look()
        for path in self.dirs[::-1]:
            self.times(path)


if __name__ == '__main__':
    Mutator(sys.argv[1], int(sys.argv[2])).run(int(sys.argv[3]))
