fill = {'fs': ['full-0', 'inc-0-1', 'inc-1-2', 'inc-2-3', 'inc-3-4-empty']}


def jobs():
    # on top of ZFS's own base; packages; empty; from a bookmark; over gaps
    yield Job('fs', 'incrementals on the base of ZFS', Base('full-0'), Send('-i @s0 {}@s1', 'inc-0-1'),
              Send('-i @s1 {}@s3'), Send('-i @s3 {}@s4', 'inc-3-4-empty'))
    yield Job('fs', '-I on the base of ZFS', Base('full-0'), Send('-I @s0 {}@s4', 'pkg-0-4'))
    yield Job('fs', 'ours, then the incremental of ZFS', Send('{}@s0', 'full-0'), Base('inc-0-1'), Base('inc-1-2'))
    yield Job('fs', 'from a bookmark', Send('{}@s1'), Send('-i {}#mark {}@s2'), before=(('bookmark', '{}@s1', '{}#mark'),))
    yield Job('fs', 'with the middle destroyed', Send('{}@s0'), Send('-Lec -i @s0 {}@s3'),
              before=(('destroy', '{}@s2'), ('destroy', '{}@s1')))
    yield Job('fs', 'from a bookmark whose snapshot is gone', Base('full-0'), Base('inc-0-1'), Send('-ce -i #mark {}@s3'))
