fill = {'names': ['full', 'inc']}
large = {'names'}


def jobs():
    yield from pairs('names', 'full', 'thin', {'plain': ('full', 'inc')})
