fill = {'acct': ['acct-full', 'acct-inc'], **{'n%d' % n: ['n%d-full' % n, 'n%d-inc' % n] for n in range(1, 7)}}


def jobs():
    for n in range(1, 7):
        yield from pairs('n%d' % n, 'a', 'b', {'plain': ('n%d-full' % n, 'n%d-inc' % n)})
    yield Job('acct', 'plain', Send('{}@a', 'acct-full'), Send('-i @a {}@b', 'acct-inc'), Note({'space': True}, 'acct/b-%s.tsv'))
