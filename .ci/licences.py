#!/usr/bin/env python3
"""Checks the licence of every dependency against the allow list of deny.toml, if cargo-deny is not installed. Every
package must be usable under allowed licences alone, and come from the registry or from this checkout."""
import json
import os
import re
import subprocess
import sys
import tomllib

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def allowed(expression, allow):
    """Evaluates an SPDX expression; `/` is the old spelling of OR."""
    tokens = re.findall(r'\(|\)|[^()\s]+', expression.replace('/', ' OR '))
    joined, i = [], 0
    while i < len(tokens):      # `X WITH Y` is one licence
        if i + 2 < len(tokens) and tokens[i + 1] == 'WITH':
            joined.append(' '.join(tokens[i:i + 3]))
            i += 3
        else:
            joined.append(tokens[i])
            i += 1
    words = {'OR': 'or', 'AND': 'and', '(': '(', ')': ')'}
    return eval(' '.join(words.get(t) or str(t in allow) for t in joined), {'__builtins__': {}})


def main():
    with open(os.path.join(ROOT, 'deny.toml'), 'rb') as f:
        deny = tomllib.load(f)
    allow = set(deny['licenses']['allow'])
    # Like cargo-deny: only packages for these targets, not those that a dependency needs on other systems.
    targets = [word for target in deny['graph']['targets'] for word in ('--filter-platform', target)]
    bad, count = [], 0
    for manifest in ('Cargo.toml', 'fuzz/Cargo.toml', 'bench/Cargo.toml'):
        path = os.path.join(ROOT, manifest)
        if not os.path.exists(path):
            continue
        text = subprocess.run(['cargo', 'metadata', '--format-version', '1', *targets, '--manifest-path', path],
                              check=True, capture_output=True, text=True).stdout
        for p in json.loads(text)['packages']:
            if p['source'] is None and p['manifest_path'].startswith(ROOT):
                continue
            count += 1
            if not p['license'] or not allowed(p['license'], allow):
                bad.append('%s %s: %s' % (p['name'], p['version'], p['license']))
            if p['source'] is None or not p['source'].startswith('registry+'):
                bad.append('%s %s: from %s' % (p['name'], p['version'], p['source']))
    print('\n'.join(sorted(set(bad))) or '%d dependencies, all under allowed licences' % count)
    return 1 if bad else 0


if __name__ == '__main__':
    sys.exit(main())
