fill = {'long': ['long-full', 'long-inc'], 'micro': ['micro-L'], 'b3': ['b3-Lec'], 'bclone': ['bclone-c']}


def jobs():
    yield from pairs('long', 'a', 'b', {'plain': ('long-full', 'long-inc')})
    yield Job('micro', '-L', Send('-L {}@a', 'micro-L'))
    yield Job('b3', 'plain', Send('{}@a', 'b3-plain'))
    yield Job('b3', '-Lec', Send('-Lec {}@a', 'b3-Lec'))
    yield Job('bclone', '-Lec', Send('-Lec {}@a', 'bclone-c'))
