"""Receives that are cut off, resumed or killed. The pool stays sound each time, and the final result is right."""
import os
import random
import subprocess
import time

from .chains import same_manifest, say
from .corpus import rows
from .report import Failed
from .snowmelt import Snowmelt

POOL, HOME = 'pond', 'tank'     # HOME: tokens name tank/…, because the corpus was made there
KILLS = 8


def home_of(binary, case, scratch):
    """A pool with all snapshots of the case under their original names."""
    home = Snowmelt(binary, os.path.join(scratch, case.name + '-home'))
    home.create_pool(HOME)
    home.receive(HOME + '/resume', case.path('full.zstream'), '-u')
    home.receive(HOME + '/resume', case.path('inc.zstream'), '-u')
    return home


def base_for(case, stream):
    """The stream that must be received before this one, or None."""
    want = case.streams[stream]['fromguid']
    if want == '0':
        return None
    return next(n for n, s in sorted(case.streams.items())
                if s['toguid'] == want and s['fromguid'] == '0' and 'RESUMING' not in s['features'])


def arrived(melt, case, dataset):
    """The reason why the newest snapshot of a dataset is wrong, or None."""
    snaps = melt.snapshots(dataset)
    if not snaps:
        return 'no snapshot came of it'
    snap, (guid, _) = list(snaps.items())[-1]
    return same_manifest(melt, snap, case.by_guid[guid][0]) or melt.checked(POOL)


def cut(report, binary, case, home, label, stream, at, scratch):
    """Receives the first `at` bytes with -s, then the rest from our own `send -t` with the token."""
    melt = Snowmelt(binary, os.path.join(scratch, label.replace(' ', '-')))
    try:
        melt.create_pool(POOL)
        base = base_for(case, stream)
        if base:
            melt.receive(POOL + '/r', case.path(base), '-u')
        result = melt.run('receive', '-s', '-u', POOL + '/r', stdin=case.path(stream), limit=at)
        if result.status == 0:
            raise Failed('a stream of %d bytes, cut to %d, was taken for whole'
                         % (os.path.getsize(case.path(stream)), at))
        if result.crashed():
            raise Failed(result.crashed())
        why = melt.checked(POOL)
        if why:
            raise Failed('after the cut: %s' % why)
        token = melt.token(POOL + '/r')
        rest = os.path.join(melt.top, 'rest')
        if token:
            home.send(rest, '-t', token)
            melt.ok('stream', 'verify', stdin=rest)
            melt.receive(POOL + '/r', rest, '-s', '-u')
        elif at > 100000:
            raise Failed('no token after %d bytes' % at)
        else:
            melt.receive(POOL + '/r', case.path(stream), '-u')
        report.check(label, arrived(melt, case, POOL + '/r')
                     or ('the token is still there' if melt.token(POOL + '/r') else None))
    except Failed as e:
        report.check(label, say(e))
    melt.close()


def killed(report, binary, case, home, stream, scratch):
    """Kills a `receive -s` with kill -9 at random moments. It continues each time from its token."""
    label = 'interrupted %s %s kill -9' % (case.name, stream)
    melt = Snowmelt(binary, os.path.join(scratch, case.name + '-kill-' + stream))
    rng = random.Random(stream)
    try:
        melt.create_pool(POOL)
        base = base_for(case, stream)
        if base:
            melt.receive(POOL + '/r', case.path(base), '-u')
        whole = case.path(stream)
        for turn in range(KILLS):
            token, source = melt.token(POOL + '/r'), whole
            if token:
                source = os.path.join(melt.top, 'rest')
                home.send(source, '-t', token)
            with open(source, 'rb') as f:
                data = f.read()
            child = melt.start(['receive', '-s', '-u', POOL + '/r'], stdin=subprocess.PIPE)
            # most of it at once, then slowly, so that the kill meets different states
            stop = rng.randrange(len(data) // 2, len(data))
            try:
                child.stdin.write(data[:stop])
                child.stdin.flush()
                time.sleep(rng.uniform(0, 0.4) if turn % 2 else 6)      # every other time long enough for a txg or two
                child.kill()
                child.stdin.close()
            except BrokenPipeError:
                pass
            child.stdin = None      # communicate would flush the closed pipe
            child.communicate()
            why = melt.checked(POOL)
            if why:
                raise Failed('after kill %d: %s' % (turn, why))
        token, source = melt.token(POOL + '/r'), whole
        if token:
            source = os.path.join(melt.top, 'rest')
            home.send(source, '-t', token)
        melt.receive(POOL + '/r', source, '-s', '-u')
        report.check(label, arrived(melt, case, POOL + '/r'))
    except (Failed, OSError, ValueError) as e:
        report.check(label, say(e))
    melt.close()


def tokens(report, binary, case, home):
    """A token of real ZFS: its contents, and a stream from it."""
    for name, stream, at, made in rows(case.path('resume.tsv')):
        if made == '-':
            continue
        label = 'interrupted %s token of %s' % (case.name, name)
        with open(case.path(name + '.token'), encoding='ascii') as f:
            token = f.read().strip()
        with open(case.path(name + '.token.txt'), encoding='utf-8') as f:
            said = [s for s in f.read().split('\n') if s.startswith('\t')]
        result = home.run('stream', 'token', token)
        missing = [s for s in said if s.strip() not in result.out.decode('utf-8', 'replace')]
        report.check(label, result if result.status else ('not shown: %s' % missing if missing else None))
        path = os.path.join(home.top, name + '.rest')
        result = home.run('send', '-t', token, stdout=path)
        if result.status == 0:
            result = home.run('stream', 'verify', stdin=path)
        report.check(label + ' sends', result if result.status else None)


def whole(report, binary, case, scratch):
    try:
        home = home_of(binary, case, scratch)
    except Failed as e:
        report.check('interrupted %s home' % case.name, say(e))
        return
    tokens(report, binary, case, home)
    for name, stream, at, _ in rows(case.path('resume.tsv')):
        cut(report, binary, case, home, 'interrupted %s %s' % (case.name, name), stream, int(at), scratch)
    for stream in ('full.zstream', 'full-Lec.zstream'):
        size = os.path.getsize(case.path(stream))
        for share in (1, 20, 40, 60, 80, 99):
            cut(report, binary, case, home, 'interrupted %s %s %d%%' % (case.name, stream, share), stream,
                size * share // 100 + 7, scratch)
    for stream in ('full.zstream', 'inc.zstream'):
        killed(report, binary, case, home, stream, scratch)
    home.close()


def jobs(report, binary, cases, scratch):
    for case in cases:
        if os.path.exists(case.path('resume.tsv')) and report.wants('interrupted ' + case.name):
            yield lambda case=case: whole(report, binary, case, scratch)
