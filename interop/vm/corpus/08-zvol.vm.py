fill = {'vol8K': ['8K-plain-full', '8K-plain-inc1', '8K-plain-inc2'], 'vol16K': ['16K-c-full', '16K-c-inc1', '16K-c-inc2']}


def jobs():
    yield Job('vol8K', 'plain', Send('{}@a', '8K-plain-full'), Send('-i @a {}@b', '8K-plain-inc1'), Send('-i @b {}@c', '8K-plain-inc2'))
    yield Job('vol16K', '-c, then -Lec -p -I', Send('-c {}@a', '16K-c-full'), Send('-Lec -p -I @a {}@c', '16K-Lec-pkg'))
