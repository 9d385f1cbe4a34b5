"""What is sent to real ZFS: which streams of the corpus fill our pool, and every way they leave it.

The names are those of the corpus, so that resume tokens made at either end name a dataset that the
other end has.
"""

# dataset -> case, streams received in order
FILL = {
    'fs': ('01', ['full-0', 'inc-0-1', 'inc-1-2', 'inc-2-3', 'inc-3-4-empty']),
    'flagsL': ('02', ['full-Lec', 'inc-Lec']),
    'flagsP': ('02', ['full-plain', 'inc-plain']),
    **{'c-' + c: ('03', [c + '-full-c', c + '-inc-c']) for c in ('lz4', 'zstd-3', 'zstd-fast', 'gzip-6', 'lzjb', 'zle', 'off')},
    **{'r' + r: ('04', [r + '-full', r + '-inc1', r + '-inc2']) for r in ('4K', '16K', '128K')},
    'r1M': ('04', ['1M-L-full', '1M-L-pkg']),
    'names': ('05', ['full', 'inc']),
    **{'x-' + x: ('06', [x + '-full', x + '-inc']) for x in ('sa-legacy', 'dir-legacy')},
    'x-sa-auto': ('06', ['sa-auto-p', 'sa-auto-inc']),
    'special': ('07', ['full', 'inc']),
    'vol8K': ('08', ['8K-plain-full', '8K-plain-inc1', '8K-plain-inc2']),
    'vol16K': ('08', ['16K-c-full', '16K-c-inc1', '16K-c-inc2']),
    'resume': ('10', ['full', 'inc']),
    **{n: ('11', [n + '-w-full', n + '-w-inc']) for n in ('gcmpass', 'ccmpass', 'ccmraw')},
    'redact': ('12', ['redacted']),
    'acct': ('13', ['acct-full', 'acct-inc']),
    **{'n%d' % n: ('13', ['n%d-full' % n, 'n%d-inc' % n]) for n in range(1, 7)},
    'large': ('14', ['full-Lec', 'inc']),
    'long': ('16', ['long-full', 'long-inc']),
    'micro': ('16', ['micro-L']),
    'b3': ('16', ['b3-Lec']),
    'bclone': ('16', ['bclone-c']),
}
LARGE = {'names'}
ACL = ('-o', 'acltype=posixacl')


class Send:
    """One stream of ours: `zfs send` arguments, with {} for the dataset's name at home. `twin` is
    the stream that ZFS made with the same arguments (case, file), used to test this harness."""

    def __init__(self, args, twin=None, receive=()):
        self.args, self.twin, self.receive = args.split(), twin, list(receive)


class Base:
    """A stream that ZFS made, received as it is."""

    def __init__(self, case, stream, receive=()):
        self.case, self.stream, self.receive = case, stream, list(receive)


class Cut:
    """A stream of ours of which only a share (percent) arrives; `snowmelt send -t` gives the rest."""

    def __init__(self, args, share):
        self.args, self.share = args.split(), share


class Note:
    """Something else the guest does; `truth` is the file that says what must come of it."""

    def __init__(self, step, truth=None):
        self.step, self.truth = step, truth


class Job:
    """Steps that work in one fresh dataset of the guest. `before` are commands run on our pool
    before the streams are made."""

    def __init__(self, home, title, *steps, before=()):
        self.home, self.title, self.steps, self.before = home, title, steps, before


def pairs(home, case, a, b, ways, receive=()):
    """A full and an incremental stream for each way of sending."""
    for way, twins in ways.items():
        twins = twins or (None, None)
        flags = '' if way == 'plain' else way
        yield Job(home, way,
                  Send('%s {}@%s' % (flags, a), twins[0] and (case, twins[0]), receive),
                  Send('%s -i @%s {}@%s' % (flags, a, b), twins[1] and (case, twins[1]), receive))


def jobs():
    # 01: on top of ZFS's own base; packages; empty; from a bookmark; over gaps
    yield Job('fs', 'incrementals on the base of ZFS', Base('01', 'full-0'), Send('-i @s0 {}@s1', ('01', 'inc-0-1')),
              Send('-i @s1 {}@s3'), Send('-i @s3 {}@s4', ('01', 'inc-3-4-empty')))
    yield Job('fs', '-I on the base of ZFS', Base('01', 'full-0'), Send('-I @s0 {}@s4', ('01', 'pkg-0-4')))
    yield Job('fs', 'ours, then the incremental of ZFS', Send('{}@s0', ('01', 'full-0')), Base('01', 'inc-0-1'),
              Base('01', 'inc-1-2'))
    yield Job('fs', 'from a bookmark', Send('{}@s1'), Send('-i {}#mark {}@s2'), before=(('bookmark', '{}@s1', '{}#mark'),))
    yield Job('fs', 'with the middle destroyed', Send('{}@s0'), Send('-Lec -i @s0 {}@s3', None),
              before=(('destroy', '{}@s2'), ('destroy', '{}@s1')))
    yield Job('fs', 'from a bookmark whose snapshot is gone', Base('01', 'full-0'), Base('01', 'inc-0-1'),
              Send('-ce -i #mark {}@s3'))
    # 02: every combination of flags from a source that has everything, and from a plain one
    yield from pairs('flagsL', '02', 'a', 'b', {
        'plain': ('full-plain', 'inc-plain'), '-c': ('full-c', 'inc-c'), '-e': ('full-e', 'inc-e'), '-L': ('full-L', 'inc-L'),
        '-e -c': ('full-ec', 'inc-ec'), '-L -c': ('full-Lc', 'inc-Lc'), '-L -e -c': ('full-Lec', 'inc-Lec'), '-p': None})
    yield from pairs('flagsP', '02', 'a', 'b', {'plain': ('full-plain', 'inc-plain'), '-L -e -c': None})
    # 03
    for c in ('lz4', 'zstd-3', 'zstd-fast', 'gzip-6', 'lzjb', 'zle', 'off'):
        yield from pairs('c-' + c, '03', 'one', 'two', {'-c': (c + '-full-c', c + '-inc-c')})
    for c in ('zstd-3', 'gzip-6', 'lzjb', 'zle'):
        yield from pairs('c-' + c, '03', 'one', 'two', {'plain': None})
    # 04
    for r in ('4K', '16K', '128K'):
        yield Job('r' + r, 'plain', Send('{}@a', ('04', r + '-full')), Send('-i @a {}@b', ('04', r + '-inc1')),
                  Send('-i @b {}@c', ('04', r + '-inc2')))
    yield Job('r1M', '-L, then -I', Send('-L {}@a', ('04', '1M-L-full')), Send('-L -I @a {}@c', ('04', '1M-L-pkg')))
    yield Job('r1M', 'split to 128 KiB', Send('{}@a', ('04', '1M-full')), Send('-i @a {}@b', ('04', '1M-inc1')),
              Send('-i @b {}@c', ('04', '1M-inc2')))
    yield from pairs('r1M', '04', 'a', 'c', {'-L -c': ('1M-Lc-full', '1M-Lc-inc')})
    # 05
    yield from pairs('names', '05', 'full', 'thin', {'plain': ('full', 'inc')})
    # 06
    for x in ('sa-legacy', 'sa-auto', 'dir-legacy'):
        yield from pairs('x-' + x, '06', 'a', 'b', {'plain': (x + '-full', x + '-inc'), '-L -e -c': None}, ACL)
    yield Job('x-sa-auto', '-p keeps acltype', Send('-p {}@a', ('06', 'sa-auto-p')), Send('-i @a {}@b', ('06', 'sa-auto-inc')))
    # 07
    yield from pairs('special', '07', 'one', 'two', {'plain': ('full', 'inc'), '-L -e -c': None})
    # 08
    yield Job('vol8K', 'plain', Send('{}@a', ('08', '8K-plain-full')), Send('-i @a {}@b', ('08', '8K-plain-inc1')),
              Send('-i @b {}@c', ('08', '8K-plain-inc2')))
    yield Job('vol16K', '-c, then -Lec -p -I', Send('-c {}@a', ('08', '16K-c-full')), Send('-Lec -p -I @a {}@c', ('08', '16K-Lec-pkg')))
    # 09 (the tree grows between two of these: see fill_tree)
    # 10
    for share in (3, 50, 97):
        yield Job('resume', 'full cut at %d %%' % share, Cut('{}@a', share), Send('-i @a {}@b', ('10', 'inc')))
        yield Job('resume', '-Lec cut at %d %%' % share, Cut('-Lec {}@a', share))
        yield Job('resume', 'incremental cut at %d %%' % share, Base('10', 'full'), Cut('-i @a {}@b', share))
    # 11
    for n in ('gcmpass', 'ccmpass', 'ccmraw'):
        yield Job(n, 'raw', Send('-w {}@a', ('11', n + '-w-full')), Send('-w -i @a {}@b', ('11', n + '-w-inc')),
                  Note({'key': 'keys/%s.key' % n}))
    yield Job('gcmpass', 'raw on the base of ZFS', Base('11', 'gcmpass-w-full'), Send('-w -i @a {}@b', ('11', 'gcmpass-w-inc')),
              Note({'key': 'keys/gcmpass.key'}))
    # 12
    yield Job('redact', 'redacted', Send('-c {}@base', ('12', 'redacted')))
    # 13
    for n in range(1, 7):
        yield from pairs('n%d' % n, '13', 'a', 'b', {'plain': ('n%d-full' % n, 'n%d-inc' % n)})
    yield Job('acct', 'plain', Send('{}@a', ('13', 'acct-full')), Send('-i @a {}@b', ('13', 'acct-inc')),
              Note({'space': True}, ('13', 'acct/b-%s.tsv')))
    # 14
    yield from pairs('large', '14', 'a', 'b', {'-L -e -c': ('full-Lec', None)})
    # 16
    yield from pairs('long', '16', 'a', 'b', {'plain': ('long-full', 'long-inc')})
    yield Job('micro', '-L', Send('-L {}@a', ('16', 'micro-L')))
    yield Job('b3', 'plain', Send('{}@a', ('16', 'b3-plain')))
    yield Job('b3', '-Lec', Send('-Lec {}@a', ('16', 'b3-Lec')))
    yield Job('bclone', '-Lec', Send('-Lec {}@a', ('16', 'bclone-c')))


# What is received into the tree, and what is sent from it before the next is received.
TREES = (
    ('tree', '09', 'R-h-r2', (
        Job('tree', '-R', Send('-R {}@r2', ('09', 'R-r2'), ['-F'])),
        Job('tree', '-R -h', Send('-R -h {}@r2', ('09', 'R-h-r2'), ['-F']), Note({'holds': True}, ('09', 'props/received-holds.tsv'))),
    )),
    ('tree', '09', 'R-I-r2-r4', (
        Job('tree', '-R -I on the base of ZFS', Base('09', 'R-r2', ['-F']), Send('-R -I @r2 {}@r4', ('09', 'R-I-r2-r4'), ['-F']),
            Note({'props': True}, ('09', 'props/received-after-R-I.tsv'))),
        Job('tree', '-R -Lec', Send('-R -Lec {}@r4', ('09', 'R-Lec-r4'), ['-F'])),
        Job('tree/alpha', '-p', Send('-p {}@r2', ('09', 'p-alpha-r2'))),
        Job('tree/clone', 'a clone by itself', Send('{}@r2'), Send('-i @r2 {}@r3'), Send('-i @r3 {}@r4')),
        Job('tree/vol', 'a volume', Send('{}@r2'), Send('-i @r2 {}@r4')),
    )),
    ('gcmraw', '11', 'tree-w-R', (
        Job('gcmraw', 'raw tree', Send('-w -R {}@c', ('11', 'tree-w-R'), ['-F']), Note({'key': 'keys/gcmraw.key'})),
    )),
    ('gcmraw', '11', 'tree-w-R-after-change-key', (
        Job('gcmraw', 'raw tree, key changed', Base('11', 'tree-w-R', ['-F']),
            Send('-w -R -I @c {}@d', ('11', 'tree-w-R-after-change-key'), ['-F']), Note({'key': 'keys/gcmraw-changed.key'})),
    )),
)
