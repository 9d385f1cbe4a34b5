"""Chooses a part of a suite that takes about a given time, a different one for each commit."""
import hashlib

# Suites that are cut into parts. The others run completely each time.
CUT = ('autobackup', 'zts', 'rsync')

# Assumed duration of a test whose duration is unknown. rsync's tests need no setup, and run in parallel.
SECONDS = {'autobackup': 4.0, 'zts': 4.0, 'rsync': 0.9}
# Suites in which each test is a group.
SINGLE = ('rsync',)


def choose(suite, names, durations, seconds, key):
    """Whole groups (the part of a name before the last slash or dot), in an order that the key decides, until the time
    is used up."""
    groups = {}
    for name in names:
        groups.setdefault(name if suite in SINGLE else group_of(name), []).append(name)

    def place(group):
        return hashlib.sha256(('%s %s' % (key, group)).encode()).digest()

    chosen, left = [], seconds
    for group in sorted(groups, key=place):
        cost = sum(durations.get(name, SECONDS[suite]) for name in groups[group])
        if chosen and cost > left:
            continue
        chosen += groups[group]
        left -= cost
    return chosen


def group_of(name):
    return name.rsplit('/', 1)[0] if '/' in name else name.split('.')[0]
