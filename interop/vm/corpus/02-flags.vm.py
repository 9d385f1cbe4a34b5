fill = {'flagsL': ['full-Lec', 'inc-Lec'], 'flagsP': ['full-plain', 'inc-plain']}


def jobs():
    # every combination of flags from a source with all kinds of blocks, and from a plain one
    yield from pairs('flagsL', 'a', 'b', {
        'plain': ('full-plain', 'inc-plain'), '-c': ('full-c', 'inc-c'), '-e': ('full-e', 'inc-e'), '-L': ('full-L', 'inc-L'),
        '-e -c': ('full-ec', 'inc-ec'), '-L -c': ('full-Lc', 'inc-Lc'), '-L -e -c': ('full-Lec', 'inc-Lec'), '-p': None})
    yield from pairs('flagsP', 'a', 'b', {'plain': ('full-plain', 'inc-plain'), '-L -e -c': None})
