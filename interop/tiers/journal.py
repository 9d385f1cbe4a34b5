"""Numbered changes of a directory, and its expected state after any number of them.

The same seed gives the same changes. Each change is one request to the filesystem. After a crash the directory must
therefore be in the state after a whole number of changes, and not before the last synced one. Only writes may be cut by
the kernel, at page boundaries.
"""
import hashlib
import os
import random
import stat

NAMES = ['plain', 'with space', 'ünï', '-dash', 'x' * 180, 'tab\there']
FILE_MAX = 300_000
WRITE_MAX = 65_536
ENTRIES_MAX = 400
PAGE = 4096


class Node:
    def __init__(self, kind, mode=0, target=''):
        self.kind, self.mode, self.target = kind, mode, target
        self.data, self.xattrs, self.names = bytearray(), {}, set()


class Journal:
    """The model. `at` is the number of applied changes, `print` a sum over the whole state."""

    def __init__(self, seed):
        self.random, self.at, self.sum = random.Random(seed), 0, 0
        self.nodes = {}

    def print_of(self, path):
        return entry_print(path, describe(self.nodes[path]))

    def toggle(self, paths):
        for path in paths:
            if path in self.nodes:
                self.sum ^= self.print_of(path)

    def paths(self, kind):
        return sorted(p for p, n in self.nodes.items() if n.kind == kind)

    def new_path(self):
        where = self.random.choice([''] + [d + '/' for d in self.paths('d')])
        return '%s%s-%d' % (where, self.random.choice(NAMES), self.at)

    def next(self):
        """The next change, which is not made yet."""
        r, files, dirs = self.random, self.paths('f'), self.paths('d')
        every = len(self.nodes)
        what = r.choice(['create'] * 4 + ['write'] * 8 + ['truncate', 'rename', 'rename', 'link', 'unlink', 'mkdir',
                                                          'rmdir',
                         'symlink', 'chmod', 'setxattr', 'sync'])
        if every > ENTRIES_MAX and what in ('create', 'mkdir', 'symlink', 'link'):
            what = 'unlink'
        if not files and what not in ('create', 'mkdir', 'symlink'):
            what = 'create'
        if what == 'create':
            return ('create', self.new_path(), r.choice([0o600, 0o644, 0o755]))
        if what == 'mkdir':
            return ('mkdir', self.new_path() if len(dirs) < 20 else 'top-%d' % self.at)
        if what == 'symlink':
            return ('symlink', self.new_path(), 'to ' * r.randrange(1, 200))
        if what == 'rmdir':
            empty = [d for d in dirs if not any(p.startswith(d + '/') for p in self.nodes)]
            return ('rmdir', r.choice(empty)) if empty else ('mkdir', self.new_path())
        path = r.choice(files)
        size = len(self.nodes[path].data)
        if what == 'write':
            offset = r.choice([size, r.randrange(size + 1), r.randrange(FILE_MAX)])
            data = r.randbytes(r.randrange(1, WRITE_MAX))
            return ('write', path, min(offset, FILE_MAX), data)
        if what == 'truncate':
            return ('truncate', path, r.randrange(FILE_MAX))
        if what == 'rename':
            # Sometimes onto another file, but never a link onto another name of the same file, which has no effect.
            other = r.choice(files)
            to = other if r.random() < 0.3 and self.nodes[other] is not self.nodes[path] else self.new_path()
            return ('rename', path, to)
        if what == 'link':
            return ('link', path, self.new_path())
        if what == 'unlink':
            return ('unlink', path)
        if what == 'chmod':
            return ('chmod', path, r.choice([0o600, 0o640, 0o711]))
        if what == 'setxattr':
            return ('setxattr', path, 'user.%d' % r.randrange(3), r.randbytes(r.choice([1, 30, 700])))
        return ('sync', path)

    def apply(self, change):
        what, path, *rest = change
        node = self.nodes.get(path)
        touched = {path, *([rest[0]] if what in ('rename', 'link') else [])}
        for p in list(touched):
            if p in self.nodes:
                touched |= self.nodes[p].names
        self.toggle(touched)
        if what in ('create', 'mkdir', 'symlink'):
            kind = {'create': 'f', 'mkdir': 'd', 'symlink': 'l'}[what]
            node = Node(kind, rest[0] if kind == 'f' else 0, rest[0] if kind == 'l' else '')
            self.put(path, node)
        elif what == 'write':
            offset, data = rest
            node.data.extend(bytes(max(0, offset - len(node.data))))
            node.data[offset:offset + len(data)] = data
        elif what == 'truncate':
            size = rest[0]
            node.data.extend(bytes(max(0, size - len(node.data))))
            del node.data[size:]
        elif what == 'rename':
            self.take(path)
            if rest[0] in self.nodes:
                self.take(rest[0])
            self.put(rest[0], node)
        elif what == 'link':
            self.put(rest[0], node)
        elif what in ('unlink', 'rmdir'):
            self.take(path)
        elif what == 'chmod':
            node.mode = rest[0]
        elif what == 'setxattr':
            node.xattrs[rest[0]] = rest[1]
        self.toggle(touched)
        self.at += 1

    def put(self, path, node):
        self.nodes[path] = node
        node.names.add(path)

    def take(self, path):
        self.nodes.pop(path).names.discard(path)


def perform(top, change):
    """Makes a change in the directory `top`."""
    what, path, *rest = change
    full = os.path.join(top, path)
    if what == 'create':
        os.close(os.open(full, os.O_CREAT | os.O_EXCL | os.O_WRONLY, rest[0]))
    elif what == 'mkdir':
        os.mkdir(full)
    elif what == 'symlink':
        os.symlink(rest[0], full)
    elif what == 'write':
        with_fd(full, os.O_WRONLY, lambda fd: whole(os.pwrite(fd, rest[1], rest[0]), rest[1]))
    elif what == 'truncate':
        os.truncate(full, rest[0])
    elif what == 'rename':
        os.rename(full, os.path.join(top, rest[0]))
    elif what == 'link':
        os.link(full, os.path.join(top, rest[0]))
    elif what == 'unlink':
        os.unlink(full)
    elif what == 'rmdir':
        os.rmdir(full)
    elif what == 'chmod':
        os.chmod(full, rest[0])
    elif what == 'setxattr':
        os.setxattr(full, rest[0], rest[1])
    elif what == 'sync':
        with_fd(full, os.O_RDONLY, os.fsync)


def with_fd(path, flags, use):
    fd = os.open(path, flags)
    try:
        use(fd)
    finally:
        os.close(fd)


def whole(written, data):
    if written != len(data):
        raise OSError(0, 'a write of %d bytes wrote %d' % (len(data), written))


def describe(node):
    if node.kind == 'd':
        return ('d',)
    if node.kind == 'l':
        return ('l', node.target)
    return ('f', node.mode, len(node.names), len(node.data), hashlib.sha256(node.data).hexdigest(),
            sorted(node.xattrs.items()))


def entry_print(path, description):
    return int.from_bytes(hashlib.sha256(repr((path, description)).encode('utf-8', 'surrogateescape')).digest()[:16],
                          'big')


def look(top):
    """path -> description of everything below a real directory."""
    found = {}
    for where, dirs, files in os.walk(top, onerror=fail):
        for name in dirs + files:
            full = os.path.join(where, name)
            st = os.lstat(full)
            path = os.path.relpath(full, top)
            if stat.S_ISDIR(st.st_mode):
                found[path] = ('d',)
            elif stat.S_ISLNK(st.st_mode):
                found[path] = ('l', os.readlink(full))
            else:
                with open(full, 'rb') as f:
                    data = f.read()
                xattrs = sorted((name, os.getxattr(full, name)) for name in os.listxattr(full)
                                if name.startswith('user.'))
                found[path] = ('f', st.st_mode & 0o7777, st.st_nlink, st.st_size, hashlib.sha256(data).hexdigest(),
                               xattrs)
    return found


def fail(error):
    raise error


def cut_write(model, change, found, total):
    """Whether the found state is the result of a write of which only the first pages were done."""
    _, path, offset, data = change
    node = model.nodes[path]
    for name in node.names:
        if name not in found:
            return False
        total ^= entry_print(name, found[name])
    if total != model.sum ^ xor(model.print_of(name) for name in node.names):
        return False
    before, matches = bytes(node.data), False
    for end in range(offset // PAGE * PAGE + PAGE, offset + len(data), PAGE):
        node.data[:] = before.ljust(offset, b'\0')
        node.data[offset:end] = data[:end - offset]
        matches |= all(describe(node) == found[name] for name in node.names)
    node.data[:] = before
    return matches


def xor(prints):
    total = 0
    for one in prints:
        total ^= one
    return total


class Writer:
    """Makes changes in `top` until it is stopped or one fails. `synced` is the number of changes known to be durable.
    """

    def __init__(self, top, seed):
        self.top, self.seed = top, seed
        self.done = self.synced = 0
        self.stopped, self.error = False, None

    def run(self):
        model = Journal(self.seed)
        while not self.stopped:
            change = model.next()
            try:
                perform(self.top, change)
            except OSError as e:
                self.error = '%s %s: %s' % (change[0], change[1], e)
                return
            model.apply(change)
            self.done = model.at
            if change[0] == 'sync':
                self.synced = model.at

    def lost(self):
        """The reason why the directory is not in the state after some number of changes from `synced` on, or None."""
        found, total = look(self.top), 0
        for path, description in found.items():
            total ^= entry_print(path, description)
        model = Journal(self.seed)
        # One more change than is known may have been made.
        while model.at <= self.done:
            if model.at >= self.synced and model.sum == total:
                return None
            change = model.next()
            if change[0] == 'write' and model.at >= self.synced and cut_write(model, change, found, total):
                return None
            model.apply(change)
        if model.sum == total:
            return None
        model = Journal(self.seed)
        while model.at < self.synced:
            if model.sum == total:
                return 'as after change %d, but %d were synced' % (model.at, self.synced)
            model.apply(model.next())
        truth = {path: describe(node) for path, node in model.nodes.items()}
        odd = ['%r: %.200r, should be %.200r' % (p, found.get(p), truth.get(p)) for p in sorted({*found, *truth})
               if found.get(p) != truth.get(p)]
        return 'as after no number of changes from %d to %d; against %d:\n%s' % (
            self.synced, self.done + 1, self.synced, '\n'.join(odd))
