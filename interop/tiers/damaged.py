"""Gives every damaged stream to `receive`. Each must be refused with an error that names the record and the offset, or
(where that is allowed) be harmless. The pool stays unchanged."""
import json
import os
import re

from .report import Failed
from .snowmelt import Snowmelt

POOL = 'pond'
SECONDS = 60                # for one stream of at most 350 kB
RSS = 300 << 20             # bytes

# A flipped bit in ciphertext, MAC or IV is noticed only when the key is used. Without the key a raw stream may be kept,
# but nothing can be read from it. With the key, `stream verify` refuses it.
NEEDS_KEY = {'bad-w-ciphertext.zstream', 'bad-w-mac.zstream', 'bad-w-iv.zstream'}
# Errors that are not about a record, with their messages: a missing base snapshot, and an empty stream, for which tools
# expect ZFS's message.
NO_RECORD = {'bad-i-fromguid.zstream': 'does not\nmatch incremental source',
             'bad-cut-empty.zstream': 'cannot receive: failed to read from stream'}
PLACE = (re.compile(r'\brecord\b\D{0,20}\d', re.I), re.compile(r'\boffset\b\D{0,20}\d', re.I))


def bounded(result):
    """The reason why a run broke the limits, or None."""
    why = result.crashed()
    if not why and result.rss_bytes > RSS:
        why = '%d MiB resident' % (result.rss_bytes >> 20)
    return '%s\n%s' % (why, result) if why else None


def one(report, binary, case, line, scratch):
    name, expect = line['file'], line['expect']
    melt = Snowmelt(binary, os.path.join(scratch, 'damaged-' + name))
    label = 'damaged ' + name
    try:
        report.check(label, judge(melt, case, name, expect, line['what']))
        report.check(label + ' stream tools', tools(melt, case.path(name)))
        if name in NEEDS_KEY:
            report.check(label + ' with its key', with_key(melt, case, line))
    except Failed as e:
        report.check(label, e)
    melt.close()


def judge(melt, case, name, expect, what):
    melt.create_pool(POOL)
    if name.startswith('bad-i-'):
        melt.receive(POOL + '/r', case.path('base-full.zstream'), '-u')
    before = melt.state(POOL)
    result = melt.run('receive', '-u', POOL + '/r', stdin=case.path(name), timeout=SECONDS)
    why = bounded(result)
    if why:
        return why
    if result.status == 0:
        if expect == 'refuse' and name not in NEEDS_KEY:
            return 'accepted, though %s' % what
        why = read_all(melt, name in NEEDS_KEY)
    else:
        if melt.state(POOL) != before:
            return 'refused, and yet the pool has changed:\n%s' % melt.state(POOL).decode('utf-8', 'replace')
        if not result.text():
            return 'refused without a word'
        if NO_RECORD.get(name, '') not in result.text():
            return 'other words than expected: %s' % result.text()
        if name not in NO_RECORD and expect == 'refuse' and not all(p.search(result.text()) for p in PLACE):
            return 'the error names no record and offset: %s' % result.text()
    return why or melt.checked(POOL)


def read_all(melt, must_fail):
    """Reads all accepted data. Reading must succeed or fail with an error, without a crash."""
    for snap in melt.snapshots(POOL + '/r'):
        result = melt.run('manifest', snap, timeout=SECONDS)
        why = bounded(result)
        if why:
            return 'accepted; manifest: %s' % why
        if must_fail and result.status == 0:
            return 'accepted, and read without a key'
    return None


def tools(melt, path):
    for verb in ('verify', 'dump'):
        why = bounded(melt.run('stream', verb, stdin=path, timeout=SECONDS))
        if why:
            return 'stream %s: %s' % (verb, why)
    return None


def with_key(melt, case, line):
    """The original stream is authentic, and the damaged one is refused at the damaged record."""
    base = case.path(line['base'])
    good = melt.run('stream', 'verify', *case.keys(), base, timeout=SECONDS)
    if good.status != 0 or b'authentic: ' not in good.out:
        return 'the undamaged stream is not authentic with its key: %s' % good
    result = melt.run('stream', 'verify', *case.keys(), case.path(line['file']), timeout=SECONDS)
    why = bounded(result)
    if why:
        return why
    if result.status == 0:
        return 'authentic, though %s' % line['what']
    if not all(p.search(result.text()) for p in PLACE) or 'authentication failed' not in result.text():
        return 'refused for another reason: %s' % result.text()
    return None


def jobs(report, binary, cases, scratch):
    for case in cases:
        path = case.path('expected.jsonl')
        if not os.path.exists(path):
            continue
        with open(path, encoding='utf-8') as f:
            for line in map(json.loads, f):
                if report.wants('damaged ' + line['file']):
                    yield lambda line=line, case=case: one(report, binary, case, line, scratch)
