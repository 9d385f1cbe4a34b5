fill = {**{'x-' + x: [x + '-full', x + '-inc'] for x in ('sa-legacy', 'dir-legacy')}, 'x-sa-auto': ['sa-auto-p', 'sa-auto-inc']}
ACL = ('-o', 'acltype=posixacl')


def jobs():
    for x in ('sa-legacy', 'sa-auto', 'dir-legacy'):
        yield from pairs('x-' + x, 'a', 'b', {'plain': (x + '-full', x + '-inc'), '-L -e -c': None}, ACL)
    yield Job('x-sa-auto', '-p keeps acltype', Send('-p {}@a', 'sa-auto-p'), Send('-i @a {}@b', 'sa-auto-inc'))
