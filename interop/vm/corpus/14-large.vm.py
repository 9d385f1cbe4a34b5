fill = {'large': ['full-Lec', 'inc']}


def jobs():
    yield from pairs('large', 'a', 'b', {'-L -e -c': ('full-Lec', None)})
