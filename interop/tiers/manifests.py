"""Compares manifests: JSON lines in the format of vm/manifest.py."""
import json

# The place of holes depends on the receiver's settings. Everything else must be equal.
IGNORED = ('data',)


def parse(lines):
    """key -> entry, with the path or 'volume' as key"""
    out = {}
    for line in lines:
        if not line.strip():
            continue
        entry = json.loads(line)
        for key in IGNORED:
            entry.pop(key, None)
        name = entry.get('path') or entry.get('path_b64') or entry['type']
        if name in out:
            return None, 'path twice: %r' % name
        out[name] = entry
    return out, None


def difference(truth_path, got):
    """The reason why `got` (bytes or lines) differs from the truth, or None."""
    with open(truth_path, encoding='utf-8') as f:
        want, _ = parse(f)
    if isinstance(got, bytes):
        got = got.decode('utf-8', 'surrogateescape').split('\n')
    try:
        have, why = parse(got)
    except (ValueError, KeyError) as e:
        return 'not a manifest: %s' % e
    if why:
        return why
    found = ['missing: %s' % k for k in want if k not in have] + ['not there in truth: %s' % k for k in have
                                                                  if k not in want]
    for name, entry in want.items():
        if name in have and entry != have[name]:
            keys = sorted(k for k in {*entry, *have[name]} if entry.get(k) != have[name].get(k))
            found.append('%s: %s' % (name, ', '.join(
                '%s is %.120r, should be %.120r' % (k, have[name].get(k), entry.get(k)) for k in keys)))
    if not found:
        return None
    return '%d differences from %s\n%s' % (len(found), truth_path.rsplit('/', 1)[-1], '\n'.join(found[:8]))
