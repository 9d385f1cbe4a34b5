"""Receives every chain of the corpus and compares every snapshot with its manifest. Then sends the received datasets
again, and receives those streams."""
import os

from . import corpus, manifests
from .report import Failed
from .snowmelt import Snowmelt

POOL = 'pond'
# Ways of sending a received dataset again: name, options. Raw datasets use RAW instead.
WAYS = (('plain', ()), ('-Lec', ('-L', '-e', '-c')))
RAW = (('-w', ('-w',)),)
# Steps of chains after which the corpus also has the properties or holds of real ZFS.
PROPERTIES = {('tree', 'R-I-r2-r4.zstream'): 'props/received-after-R-I.tsv'}
HOLDS = {('tree2', 'R-h-r2.zstream'): 'props/received-holds.tsv'}
# Set on every volume while its manifest was made, not by the case.
MADE_UP = {'snapdev'}


def say(error):
    return str(error) or type(error).__name__


class ChainRun:
    """One chain of one case, in one pool."""

    def __init__(self, report, binary, case, name, steps, scratch):
        self.report, self.case, self.name, self.steps = report, case, name, steps
        self.melt = Snowmelt(binary, os.path.join(scratch, '%s-%s' % (case.name, name)))
        self.binary, self.scratch = binary, scratch
        self.top = '%s/%s' % (POOL, name)
        self.seen = {}          # snapshot -> guid, in the order of arrival
        self.locked = set()
        self.raw = []           # streams of encrypted datasets that were received

    def label(self, *words):
        return ' '.join(('corpus', self.case.name, self.name) + words)

    def run(self):
        keep = False
        try:
            self.melt.create_pool(POOL)
            for step in self.steps:
                # a pool that keeps an encrypted dataset raw does not need its key
                if not step.stream.startswith('key='):
                    self.receive(step)
            self.report.check(self.label('check'), self.melt.checked(POOL))
            self.round_trips()
            self.without_the_middle()
        except (Failed, OSError) as e:
            keep = not self.report.check(self.label('chain'), say(e))
        if not keep:
            self.melt.close()

    def receive(self, step):
        label = self.label(step.stream)
        path = self.case.path(step.stream)
        options = ['-F', '-u']
        origin = self.case.origin_stream(step.stream)
        try:
            self.report.check(label + ' verify', self.outcome('stream', 'verify', stdin=path))
            if origin:
                self.melt.receive(POOL + '/origin', self.case.path(origin), '-u')
                guid = self.case.streams[origin]['toguid']
                snap = next((n for n, (g, _) in self.melt.snapshots(POOL + '/origin').items() if g == guid), None)
                if not snap:
                    raise Failed('the origin did not keep its guid %s' % guid)
                options += ['-o', 'origin=' + snap]
            self.melt.receive(self.top, path, *options)
            self.report.check(label, None)
        except Failed as e:
            self.report.check(label, e)
            raise Failed('the chain ends at %s' % step.stream) from e
        there = self.melt.snapshots(self.top)
        wanted = {self.top + rel: outcome for rel, outcome in step.snapshots.items()}
        gone = [s for s in wanted if s not in there]
        known = set(self.seen.values())     # by guid: a package may also rename
        extra = [s for s, (guid, _) in there.items() if guid not in known and s not in wanted]
        self.report.check(label + ' snapshots', None if not gone and not extra
                          else 'missing %s, not expected %s' % (gone, extra))
        self.seen = {s: guid for s, (guid, _) in there.items()}
        for snap, (guid, creation) in there.items():
            if snap not in wanted:
                continue
            self.report.check('%s %s' % (label, snap[len(self.top):]), self.compare(snap, guid, creation, wanted[snap]))
        if self.locked and self.case.keys():
            self.report.check(label + ' authentic', self.authentic(path, self.raw))
            self.raw.append(path)
        self.besides(label, (self.name, step.stream))

    def authentic(self, path, before):
        """The reason why a raw stream is not authentic in every block and dnode, or None."""
        before = [word for earlier in before for word in ('--from', earlier)]
        result = self.melt.run('stream', 'verify', *self.case.keys(), *before, path)
        whole = result.status == 0 and b'authentic: ' in result.out and not result.err
        return None if whole else '%s\n%s' % (result, result.out.decode('utf-8', 'replace'))

    def besides(self, label, key):
        """Compares datasets, received properties and holds after a step, if the corpus has them."""
        if key in PROPERTIES and os.path.exists(self.case.path(PROPERTIES[key])):
            truth = corpus.rows(self.case.path(PROPERTIES[key]))
            home = truth[0][0]
            got = self.melt.table('get', '-rHp', '-s', 'received', '-o', 'name,property,value', 'all', self.top)
            self.same(label + ' properties', {(n[len(home):], p, v) for n, p, v, source in truth if source == 'received'
                                              and p not in MADE_UP},
                      {(n[len(self.top):], p, v) for n, p, v in got if p not in MADE_UP})
            self.same(label + ' datasets', {n[len(home):] for n, *_ in truth if '@' not in n},
                      {n[len(self.top):] for n, in self.melt.table('list', '-rHo', 'name', '-t', 'filesystem,volume',
                                                                   self.top)})
        if key in HOLDS and os.path.exists(self.case.path(HOLDS[key])):
            truth = corpus.rows(self.case.path(HOLDS[key]))
            home = truth[0][0].partition('@')[0].partition('/')[0] + '/' + self.name
            got = self.melt.table('holds', '-H', *self.seen)
            self.same(label + ' holds', {(n[len(home):], tag) for n, tag, _ in truth},
                      {(r[0][len(self.top):], r[1]) for r in got})

    def same(self, label, want, have):
        why = None if want == have else 'missing %s\nnot expected %s' % (sorted(want - have), sorted(have - want))
        self.report.check(label, why)

    def outcome(self, *args, **kw):
        result = self.melt.run(*args, **kw)
        return None if result.status == 0 else result

    def compare(self, snap, guid, creation, outcome):
        """The reason why a snapshot differs from the original, or None."""
        if guid not in self.case.by_guid:
            return 'guid %s is none of the corpus' % guid
        truth, born = self.case.by_guid[guid]
        if creation != born:
            return 'creation is %d, was %d' % (creation, born)
        if outcome == 'locked':
            self.locked.add(snap)
            result = self.melt.run('manifest', snap)
            if result.status == 0:
                return 'an encrypted snapshot was read without its key'
            return result.crashed() or (None if 'encrypted' in result.text()
                                        else 'does not say that it is encrypted: %s' % result)
        return same_manifest(self.melt, snap, truth)

    def ways(self, snaps):
        if any(s in self.locked for s in snaps):
            return RAW
        if any('LARGE_MICROZAP' in i['features'] for i in self.case.streams.values()
               if i['toguid'] in {self.seen[s] for s in snaps}):
            return WAYS[1:]     # real ZFS does not send these without -L either
        return WAYS

    def round_trips(self):
        """Sends every dataset of the chain in full and incrementally. The results elsewhere must be the same."""
        datasets = {}
        for snap in self.seen:
            datasets.setdefault(snap.split('@')[0], []).append(snap)
        for dataset, snaps in datasets.items():
            for way, options in self.ways(snaps):
                label = self.label('again', dataset[len(self.top):], way)
                there = Snowmelt(self.melt.binary, self.melt.top + '-again')
                try:
                    there.create_pool(POOL)
                    previous, raw = None, []
                    for snap in snaps:
                        path = os.path.join(there.top, 'stream%d' % len(raw))
                        base = ['-i', previous] if previous else []
                        self.melt.send(path, *options, *base, snap)
                        there.ok('stream', 'verify', stdin=path)
                        if snap in self.locked and self.case.keys():
                            why = self.authentic(path, raw)
                            if why:
                                raise Failed(why)
                            raw.append(path)
                        there.receive(POOL + '/r', path, '-u')
                        previous = snap
                    for (name, (guid, _)), snap in zip(there.snapshots(POOL + '/r').items(), snaps, strict=True):
                        if guid != self.seen[snap]:
                            raise Failed('%s has guid %s, had %s' % (name, guid, self.seen[snap]))
                        if snap not in self.locked:
                            why = same_manifest(there, name, self.case.by_guid[guid][0])
                            if why:
                                raise Failed('%s: %s' % (name, why))
                    self.report.check(label, there.checked(POOL))
                except (Failed, ValueError) as e:
                    self.report.check(label, say(e))
                there.close()

    def without_the_middle(self):
        """Destroys the second of three or more snapshots. The others stay unchanged, and an incremental stream over the
        gap is right."""
        snaps = [s for s in self.seen if s.split('@')[0] == self.top and s not in self.locked]
        if len(snaps) < 3:
            return
        label = self.label('without', snaps[1][len(self.top):])
        there = Snowmelt(self.melt.binary, self.melt.top + '-gap')
        try:
            self.melt.ok('destroy', snaps[1])
            kept = [snaps[0]] + snaps[2:]
            for snap in kept:
                why = same_manifest(self.melt, snap, self.case.by_guid[self.seen[snap]][0])
                if why:
                    raise Failed('%s: %s' % (snap, why))
            there.create_pool(POOL)
            path = os.path.join(there.top, 'stream')
            self.melt.send(path, kept[0])
            there.receive(POOL + '/r', path, '-u')
            self.melt.send(path, '-i', kept[0], kept[1])
            there.receive(POOL + '/r', path, '-u')
            name = '%s/r@%s' % (POOL, kept[1].split('@')[1])
            why = same_manifest(there, name, self.case.by_guid[self.seen[kept[1]]][0])
            self.report.check(label, why or there.checked(POOL) or self.melt.checked(POOL))
        except Failed as e:
            self.report.check(label, say(e))
        there.close()


def same_manifest(melt, snap, truth):
    result = melt.run('manifest', snap)
    if result.status != 0:
        return result
    return manifests.difference(truth, result.out)


def redacted(report, binary, case, scratch):
    """Redacted streams are in no chain. They are compared with what real ZFS shows after it received them and was
    forced to mount them: redacted data reads as zeros."""
    for name in sorted(case.streams):
        shown = case.path('manifest', name.replace('.zstream', '-as-received.jsonl'))
        if not os.path.exists(shown):
            continue
        melt = Snowmelt(binary, os.path.join(scratch, case.name + '-' + name))
        try:
            melt.create_pool(POOL)
            melt.receive(POOL + '/r', case.path(name), '-u')
            snap = next(iter(melt.snapshots(POOL + '/r')))
            result = melt.ok('manifest', snap)
            why = manifests.difference(shown, result.out)
            report.check('corpus %s %s' % (case.name, name), why or melt.checked(POOL))
        except Failed as e:
            report.check('corpus %s %s' % (case.name, name), say(e))
        melt.close()


def jobs(report, binary, cases, scratch):
    """The checks of this tier, as callables."""
    for case in cases:
        for name, steps in case.chains().items():
            # a case of interrupted receives has no plain chains: see interrupted.py
            if report.wants('corpus %s %s' % (case.name, name)) and not os.path.exists(case.path('resume.tsv')):
                if name == 'ok':        # a case of damaged streams receives several undamaged streams one by one
                    for i, group in enumerate(split_at_full(case, steps)):
                        yield ChainRun(report, binary, case, '%s%d' % (name, i), group, scratch).run
                else:
                    yield ChainRun(report, binary, case, name, steps, scratch).run
        if report.wants('corpus %s redacted' % case.name):
            yield lambda case=case: redacted(report, binary, case, scratch)


def split_at_full(case, steps):
    groups = []
    for step in steps:
        info = case.streams.get(step.stream)
        if not groups or (info and info['fromguid'] == '0'):
            groups.append([])
        groups[-1].append(step)
    return groups
