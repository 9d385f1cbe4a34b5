"""Compares results of a suite with the list of tests that are known not to pass.

A line of a list has the name of the test, its state (fail, skip, slow or any), and the reason, separated by tabs. `any`
is for tests whose result depends on the machine: any result is accepted. Durations are in a separate file. They are
used to choose parts.
"""
import os

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PASSED = 'pass'


def load(suite):
    expected = {}
    path = os.path.join(HERE, 'expected', '%s.txt' % suite)
    if os.path.exists(path):
        with open(path) as lines:
            for line in lines:
                if line.strip() and not line.startswith('#'):
                    name, state, reason = line.rstrip('\n').split('\t')
                    expected[name] = (state, reason)
    return expected


def durations(suite):
    """Durations of tests in seconds. Only of few tests they are recorded."""
    path = os.path.join(HERE, 'expected', '%s.seconds' % suite)
    known = {}
    if os.path.exists(path):
        with open(path) as lines:
            for line in lines:
                name, seconds = line.split('\t')
                known[name] = float(seconds)
    return known


def differing(suite, names, found):
    """The tests whose result differs from the list."""
    expected = load(suite)
    wanted = {name: expected.get(name, (PASSED, ''))[0] for name in names}
    return [name for name in names if wanted[name] not in (found.get(name, ('missing',))[0], 'any')]


def compare(suite, names, found, write):
    """Prints the differences from the list, and the counts. Returns the exit status."""
    expected = load(suite)
    wrong, counts = [], {}
    for name in names:
        state = found.get(name, ('missing',))[0]
        counts[state] = counts.get(state, 0) + 1
    for name in differing(suite, names, found):
        state, why = found.get(name, ('missing', 'it was not run'))
        wanted = expected.get(name, (PASSED, ''))[0]
        wrong.append('%s %s: %s, and the list says %s: %s' % (suite, name, state, wanted, why))
    if write:
        for name in sorted(found):
            state, why = found[name]
            if state != PASSED:
                print('%s\t%s\t%s' % (name, state, expected.get(name, ('', why))[1] or why))
    for line in wrong:
        print('FAIL  %s' % line)
    print('%s: %s; %d not as listed' % (suite, ', '.join('%d %s' % (counts[state], state) for state in sorted(counts)),
                                        len(wrong)))
    return 1 if wrong or not names else 0
