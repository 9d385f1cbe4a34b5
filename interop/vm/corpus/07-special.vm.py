fill = {'special': ['full', 'inc']}


def jobs():
    yield from pairs('special', 'one', 'two', {'plain': ('full', 'inc'), '-L -e -c': None})
