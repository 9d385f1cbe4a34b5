SIZES = ('4K', '16K', '128K')
fill = {**{'r' + r: [r + '-full', r + '-inc1', r + '-inc2'] for r in SIZES}, 'r1M': ['1M-L-full', '1M-L-pkg']}


def jobs():
    for r in SIZES:
        yield Job('r' + r, 'plain', Send('{}@a', r + '-full'), Send('-i @a {}@b', r + '-inc1'), Send('-i @b {}@c', r + '-inc2'))
    yield Job('r1M', '-L, then -I', Send('-L {}@a', '1M-L-full'), Send('-L -I @a {}@c', '1M-L-pkg'))
    yield Job('r1M', 'split to 128 KiB', Send('{}@a', '1M-full'), Send('-i @a {}@b', '1M-inc1'), Send('-i @b {}@c', '1M-inc2'))
    yield from pairs('r1M', 'a', 'c', {'-L -c': ('1M-Lc-full', '1M-Lc-inc')})
