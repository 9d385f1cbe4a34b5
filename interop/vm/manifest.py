#!/usr/bin/env python3
"""Write a manifest: the contents of a mounted file system snapshot, or of a volume.

  manifest.py fs DIR       one JSON line per path below DIR, DIR itself being "."
  manifest.py vol DEVICE VOLSIZE VOLBLOCKSIZE     one JSON line

Keys of a file system line (absent if they do not apply):
  path        relative to the root of the dataset; path_b64 instead if it is not valid UTF-8
  type        f d l b c p s
  mode        permission bits as four octal digits, with setuid/setgid/sticky
  uid gid ino nlink size       (no ino for ".": a mounted snapshot shows an artificial one there)
  mtime ctime atime   nanoseconds since 1970 (negative before)
  rdev        [major, minor] of a device node
  target      of a symbolic link; target_b64 instead if it is not valid UTF-8
  sha256      of a regular file's content; "eio": true instead if reading it fails (redacted)
  data        [[offset, length], ...] data extents from SEEK_DATA/SEEK_HOLE, only for files
              with holes
  sha256_pages  instead of sha256 for a (sparse) file over 1 GiB: over every 4096-byte page
              that is not all zero, in order: its offset as 8 bytes little-endian, then the
              page, the last one of the file padded with zeros
  xattrs      {name: base64 value}, including POSIX ACLs under system.posix_acl_*
  flags       inode flags from FS_IOC_GETFLAGS (0x10 immutable, 0x20 append-only,
              0x40 no dump), projid from FS_IOC_FSGETXATTR; for f and d, if not zero
  acl         `getfacl -n` text, comments and blank lines removed, if an ACL is set

Keys of a volume line: type "volume", volsize, volblocksize, sha256 of the whole device, and chunks, the first 16 hex
digits of the sha256 of each successive MiB. Lines are sorted by raw path bytes, so that two manifests can be compared
as text.
"""
import base64, errno, fcntl, hashlib, json, os, stat, struct, sys

HUGE = 1 << 30      # above this size (sparse files) only pages with data are read: sha256_pages
TYPES = {stat.S_IFREG: 'f', stat.S_IFDIR: 'd', stat.S_IFLNK: 'l', stat.S_IFBLK: 'b',
         stat.S_IFCHR: 'c', stat.S_IFIFO: 'p', stat.S_IFSOCK: 's'}


def text(out, key, raw):
    try:
        out[key] = raw.decode('utf-8')
    except UnicodeDecodeError:
        out[key + '_b64'] = base64.b64encode(raw).decode()


def extents(fd, size):
    found, at = [], 0
    while at < size:
        try:
            begin = os.lseek(fd, at, os.SEEK_DATA)
        except OSError:
            break
        at = os.lseek(fd, begin, os.SEEK_HOLE)
        found.append([begin, at - begin])
    return found


def content(out, full, size):
    with open(full, 'rb', buffering=0) as f:
        data = extents(f.fileno(), size)
        if data != ([[0, size]] if size else []):
            out['data'] = data
        digest = hashlib.sha256()
        try:
            if size <= HUGE:
                f.seek(0)
                while True:
                    chunk = f.read(1 << 20)
                    if not chunk:
                        break
                    digest.update(chunk)
                out['sha256'] = digest.hexdigest()
                return
            done = 0
            for begin, length in data:
                for at in range(max(done, begin & -4096), begin + length, 4096):
                    f.seek(at)
                    page = f.read(4096).ljust(4096, b'\0')
                    if page.strip(b'\0'):
                        digest.update(struct.pack('<Q', at) + page)
                    done = at + 4096
            out['sha256_pages'] = digest.hexdigest()
        except OSError as e:
            if e.errno != errno.EIO:
                raise
            out['eio'] = True


def flags(out, full):
    fd = os.open(full, os.O_RDONLY | os.O_NONBLOCK)
    try:
        value = struct.unpack('i', fcntl.ioctl(fd, 0x80086601, bytes(8))[:4])[0] & 0x70
        if value:
            out['flags'] = value
        projid = struct.unpack('5I8x', fcntl.ioctl(fd, 0x801c581f, bytes(28)))[3]
        if projid:
            out['projid'] = projid
    except OSError:
        pass
    finally:
        os.close(fd)


def describe(full, rel):
    st = os.lstat(full)
    kind = TYPES[stat.S_IFMT(st.st_mode)]
    out = {}
    text(out, 'path', rel)
    out.update(type=kind, mode='%04o' % stat.S_IMODE(st.st_mode), uid=st.st_uid, gid=st.st_gid,
               ino=st.st_ino, nlink=st.st_nlink, size=st.st_size,
               mtime=st.st_mtime_ns, ctime=st.st_ctime_ns, atime=st.st_atime_ns)
    if rel == b'.':
        del out['ino']
    if kind in 'bc':
        out['rdev'] = [os.major(st.st_rdev), os.minor(st.st_rdev)]
    if kind == 'l':
        text(out, 'target', os.readlink(full))
    if kind == 'f':
        content(out, full, st.st_size)
    if kind in 'fd':
        flags(out, full)
    try:
        names = os.listxattr(full, follow_symlinks=False)
    except OSError:
        names = []
    if names:
        out['xattrs'] = {n: base64.b64encode(os.getxattr(full, n, follow_symlinks=False)).decode()
                         for n in sorted(names)}
        if any(n.startswith('system.posix_acl') for n in names):
            import subprocess           # slow to load, seldom needed
            got = subprocess.run([b'getfacl', b'-n', b'-p', b'-E', b'-c', b'--', full], capture_output=True)
            out['acl'] = [s for s in got.stdout.decode().split('\n') if s and not s.startswith('#')]
    return out


def walk(full, rel):
    yield full, rel
    if stat.S_ISDIR(os.lstat(full).st_mode):
        for name in os.listdir(full):
            yield from walk(full + b'/' + name, name if rel == b'.' else rel + b'/' + name)


def main(argv):
    if argv[1] == 'fs':
        sys.setrecursionlimit(5000)
        for full, rel in sorted(walk(os.fsencode(argv[2]), b'.'), key=lambda p: p[1]):
            print(json.dumps(describe(full, rel), ensure_ascii=True, separators=(',', ':')))
    elif argv[1] == 'vol':
        digest, chunks, size = hashlib.sha256(), [], 0
        with open(argv[2], 'rb', buffering=0) as f:
            while True:
                chunk = f.read(1 << 20)
                if not chunk:
                    break
                size += len(chunk)
                digest.update(chunk)
                chunks.append(hashlib.sha256(chunk).hexdigest()[:16])
        if size != int(argv[3]):
            raise SystemExit('volume is %d bytes, not %s' % (size, argv[3]))
        print(json.dumps(dict(type='volume', volsize=size, volblocksize=int(argv[4]),
                              sha256=digest.hexdigest(), chunks=chunks), separators=(',', ':')))
    else:
        raise SystemExit(__doc__)


if __name__ == '__main__':
    main(sys.argv)
