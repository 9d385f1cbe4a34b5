ALL = ('lz4', 'zstd-3', 'zstd-fast', 'gzip-6', 'lzjb', 'zle', 'off')
fill = {'c-' + c: [c + '-full-c', c + '-inc-c'] for c in ALL}


def jobs():
    for c in ALL:
        yield from pairs('c-' + c, 'one', 'two', {'-c': (c + '-full-c', c + '-inc-c')})
    for c in ('zstd-3', 'gzip-6', 'lzjb', 'zle'):
        yield from pairs('c-' + c, 'one', 'two', {'plain': None})
