"""zrepl's platform tests: a program of its own, which makes a pool in a file for each case."""
import os
import re

BUCKETS = {'PASSING TESTS': 'pass', 'SKIPPED TESTS': 'skip', 'FAILED TESTS': 'fail'}
LIMIT = 1500


def program(world):
    return os.path.join(world.suites, 'zrepl-platformtest')


def tests(world):
    """The cases, from the generated list in zrepl's source."""
    path = os.path.join(world.suites, 'zrepl/internal/platformtest/tests/generated_cases.go')
    with open(path) as source:
        return re.findall(r'(\w+),', source.read().split('[]Case{')[1])


def run(world, names):
    pool = world.path('pool')
    words = [program(world), '-poolname', 'zreplplatformtest', '-imagepath', os.path.join(pool, 'image'),
             '-mountpoint', os.path.join(pool, 'mnt'), '-run', r'\.(%s)$' % '|'.join(names)]
    with world.log('zrepl') as log:
        world.run(words, stdout=log, stderr=log, timeout=LIMIT)
    return results(os.path.join(world.logs, 'zrepl.log'), names)


def results(log, names):
    found, bucket = {}, None
    with open(log, errors='replace') as lines:
        for line in lines:
            text = re.sub(r'\x1b\[[0-9;]*m', '', line.rstrip())
            heading = text.removesuffix(' []').removesuffix(':')
            if heading in BUCKETS:
                bucket = BUCKETS[heading]
            elif bucket and text.startswith('  '):
                # The path of a package, the function, and for a part of a case the name of the part.
                case = text.split(': ')[0].rsplit('/', 1)[-1].split('.')[1]
                state = found.get(case, (bucket, ''))[0]
                # A case with parts passes only if all of them pass.
                found[case] = ('fail' if 'fail' in (state, bucket) else state, '')
    return {name: found[name] for name in names if name in found}
