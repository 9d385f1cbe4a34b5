fill = {n: [n + '-w-full', n + '-w-inc'] for n in ('gcmpass', 'ccmpass', 'ccmraw')}


def jobs():
    for n in fill:
        yield Job(n, 'raw', Send('-w {}@a', n + '-w-full'), Send('-w -i @a {}@b', n + '-w-inc'), Note({'key': 'keys/%s.key' % n}))
    yield Job('gcmpass', 'raw on the base of ZFS', Base('gcmpass-w-full'), Send('-w -i @a {}@b', 'gcmpass-w-inc'),
              Note({'key': 'keys/gcmpass.key'}))


trees = (
    ('gcmraw', 'tree-w-R', lambda: (
        Job('gcmraw', 'raw tree', Send('-w -R {}@c', 'tree-w-R', ['-F']), Note({'key': 'keys/gcmraw.key'})),
    )),
    ('gcmraw', 'tree-w-R-after-change-key', lambda: (
        Job('gcmraw', 'raw tree, key changed', Base('tree-w-R', ['-F']),
            Send('-w -R -I @c {}@d', 'tree-w-R-after-change-key', ['-F']), Note({'key': 'keys/gcmraw-changed.key'})),
    )),
)
