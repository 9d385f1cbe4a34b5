NAMES = ['%s-%s-%s' % (length, mode, form) for length in (128, 192, 256) for mode in ('ccm', 'gcm')
         for form in ('raw', 'hex', 'passphrase')]
fill = {n: [n + '-full', n + '-inc'] for n in NAMES}


def jobs():
    for n in NAMES:
        yield Job(n, 'raw', Send('-w {}@a', n + '-full'), Send('-w -i @a {}@b', n + '-inc'), Note({'key': 'keys/%s.key' % n}))
