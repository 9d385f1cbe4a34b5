"""Finds the corpus and reads the data of its cases."""
import glob
import json
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ROOT = os.path.dirname(HERE)


def locate(make=True):
    """The directory of the unpacked corpus. In this order: $SNOWMELT_CORPUS (packed or unpacked), the archives beside
    the checkout (../shared/streams), otherwise a new one made in the virtual machine (None if `make` is false)."""
    given = os.environ.get('SNOWMELT_CORPUS')
    if given:
        if not os.path.isdir(given):
            sys.exit('SNOWMELT_CORPUS=%s is not a directory' % given)
        return unpacked(given)
    shared = os.path.join(os.path.dirname(ROOT), 'shared', 'streams')
    if os.path.isdir(shared):
        return unpacked(shared)
    made = os.path.join(ROOT, 'target', 'generated-corpus')
    if os.path.isdir(made) and cases_in(made):
        return made
    return generate(made) if make else None


def cases_in(top):
    return sorted(c for c in os.listdir(top) if os.path.isfile(os.path.join(top, c, 'index.json')))


def unpacked(top):
    archives = sorted(a for a in os.listdir(top) if a.endswith('.tar.xz'))
    if cases_in(top) or not archives:
        if not cases_in(top):
            sys.exit('%s holds no corpus' % top)
        return top
    target = os.path.join(ROOT, 'target', 'corpus')
    os.makedirs(target, exist_ok=True)
    for archive in archives:
        name = archive[:-len('.tar.xz')]
        packed = os.path.join(top, archive)
        mark = os.path.join(target, '.' + name)
        if os.path.exists(mark) and os.path.getmtime(mark) >= os.path.getmtime(packed):
            continue
        subprocess.run(['tar', '-C', target, '-xJf', packed], check=True)
        for key in [*glob.glob(os.path.join(target, name, 'keys', '*')),
                    *glob.glob(os.path.join(target, name, '*.key'))]:
            os.chmod(key, 0o600)        # the right permissions for a key
        open(mark, 'w').close()
    return target


def generate(target):
    print('no corpus at hand: making one in the virtual machine (about half an hour)', flush=True)
    vm = os.path.join(HERE, 'vm')
    work = target + '.part'
    names = sorted(f[:-3] for f in os.listdir(os.path.join(vm, 'corpus')) if f[0].isdigit() and f.endswith('.sh'))
    if os.environ.get('SUITE', 'bookworm') == 'bookworm':
        names = [n for n in names if not script_says(n, 'needs ZFS')]
    # every damaged stream that kills the machine costs a boot: about as long as everything else together
    damaged = [n for n in names if script_says(n, 'damaged')]
    groups = [damaged, [n for n in names if n not in damaged]]
    subprocess.run([os.path.join(vm, 'build.sh')], check=True)
    makers = [subprocess.Popen([os.path.join(vm, 'corpus', 'make.sh'), work, '1', *group]) for group in groups]
    if any([m.wait() for m in makers]):
        sys.exit('making the corpus failed')
    subprocess.run([os.path.join(vm, 'corpus', 'pack.sh'), work, work + '/packed'], check=True)
    os.makedirs(work + '/unpacked')
    for archive in sorted(os.listdir(work + '/packed')):
        subprocess.run(['tar', '-C', work + '/unpacked', '-xJf', os.path.join(work, 'packed', archive)], check=True)
    os.rename(work + '/unpacked', target)
    return target


def script_says(name, what):
    """Whether the script that makes a case has a line `# case: ...` with this text."""
    with open(os.path.join(HERE, 'vm', 'corpus', name + '.sh'), encoding='utf-8') as f:
        return any(line.startswith('# case: ' + what) for line in f)


def rows(path):
    if not os.path.exists(path):
        return []
    with open(path, encoding='utf-8') as f:
        return [line.rstrip('\n').split('\t') for line in f if line.strip()]


class Step:
    """One stream of a chain, and the snapshots that are new or still locked after it."""

    def __init__(self, stream, gives):
        self.stream = stream
        self.snapshots = dict(g.rsplit('=', 1) for g in split_names(gives))


def split_names(gives):
    """Splits `@a=same /b c@a=same` into its parts. Names may contain blanks. An outcome ends each part."""
    parts, word = [], ''
    for piece in gives.split(' '):
        word = word + ' ' + piece if word else piece
        if word.rsplit('=', 1)[-1] in ('same', 'locked', 'DIFFERS', 'no-manifest'):
            parts.append(word)
            word = ''
    return parts


class Case:
    """One case of the corpus."""

    def __init__(self, top, name):
        self.name, self.top = name, os.path.join(top, name)
        self.by_guid = {}       # guid -> (manifest path, creation)
        for guid, _, creation, manifest, *_ in rows(self.path('snapshots.tsv')):
            self.by_guid[guid] = (self.path(manifest), int(creation))
        with open(self.path('index.json'), encoding='utf-8') as f:
            self.streams = {s['file']: s for s in json.load(f)['streams']}

    def is_damaged(self):
        """Whether its streams are damaged on purpose. Then it lists the expected result of each."""
        return os.path.exists(self.path('expected.jsonl'))

    def path(self, *names):
        return os.path.join(self.top, *names)

    def keys(self):
        """`--keylocation`s of every key of the case."""
        found = glob.glob(self.path('keys', '*.key')) + glob.glob(self.path('*.key'))
        return [word for key in sorted(found) for word in ('--keylocation', 'file://' + os.path.abspath(key))]

    def chains(self):
        """chain name -> steps in order"""
        out = {}
        for name, stream, *gives in rows(self.path('chains.tsv')):
            out.setdefault(name, []).append(Step(stream, gives[0] if gives else ''))
        return out

    def origin_stream(self, stream):
        """The stream with the origin of a clone's stream, or None if it is not a clone."""
        info = self.streams.get(stream)
        if not info or info['compound'] or not int(info['flags'], 16) & 1:
            return None
        for name, other in sorted(self.streams.items()):
            if other['toguid'] == info['fromguid'] and other['fromguid'] == '0':
                return name
        return None


def load(top, wanted=()):
    """The cases of the corpus and the one in the repository whose names begin with a wanted name."""
    places = {name: top for name in cases_in(top)}
    places['demo'] = os.path.join(ROOT, 'testdata')
    for w in wanted:
        if not any(n.startswith(w) for n in places):
            sys.exit('no case %s in %s' % (w, top))
    return [Case(at, n) for n, at in places.items() if not wanted or any(n.startswith(w) for w in wanted)]
