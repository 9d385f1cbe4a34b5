fill = {'resume': ['full', 'inc']}
# streams of ZFS of which `snowmelt receive -s` gets a share (percent); `zfs send -t` uses the token
reverse = (('full', 30), ('full', 90), ('full-Lec', 60), ('inc', 55))


def jobs():
    for share in (3, 50, 97):
        yield Job('resume', 'full cut at %d %%' % share, Cut('{}@a', share), Send('-i @a {}@b', 'inc'))
        yield Job('resume', '-Lec cut at %d %%' % share, Cut('-Lec {}@a', share))
        yield Job('resume', 'incremental cut at %d %%' % share, Base('full'), Cut('-i @a {}@b', share))
