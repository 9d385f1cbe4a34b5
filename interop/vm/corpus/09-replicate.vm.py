FILTERS = ('zstream redup', 'zstream recompress gzip-1', 'zstream decompress', 'snowmelt stream redup',
           'snowmelt stream recompress zstd', 'snowmelt stream recompress off', 'snowmelt stream drop-record')
# the tree grows: the stream received into it, and the streams sent from it before the next one is received
trees = (
    ('tree', 'R-h-r2', lambda: (
        Job('tree', '-R', Send('-R {}@r2', 'R-r2', ['-F'])),
        Job('tree', '-R -h', Send('-R -h {}@r2', 'R-h-r2', ['-F']), Note({'holds': True}, 'props/received-holds.tsv')),
    )),
    ('tree', 'R-I-r2-r4', lambda: (
        Job('tree', '-R -I on the base of ZFS', Base('R-r2', ['-F']), Send('-R -I @r2 {}@r4', 'R-I-r2-r4', ['-F']),
            Note({'props': True}, 'props/received-after-R-I.tsv')),
        Job('tree', '-R -Lec', Send('-R -Lec {}@r4', 'R-Lec-r4', ['-F'])),
        *(Job('tree', '-R -Lec through ' + f, Piped('-R -Lec {}@r4', f, ['-F'])) for f in FILTERS),
        Job('tree/alpha', '-p', Send('-p {}@r2', 'p-alpha-r2')),
        Job('tree/clone', 'a clone by itself', Send('{}@r2'), Send('-i @r2 {}@r3'), Send('-i @r3 {}@r4')),
        Job('tree/vol', 'a volume', Send('{}@r2'), Send('-i @r2 {}@r4')),
    )),
    # the base is destroyed before the incremental stream is made
    ('bm', 'bm-full', lambda: ()),
    ('bm', 'bm-inc-from-bookmark', lambda: (
        Job('bm', 'bookmark', Base('bm-full'), Send('-i #mark {}@b'),
            before=(('bookmark', '{}@a', '{}#mark'), ('destroy', '{}@a'))),
    )),
)
