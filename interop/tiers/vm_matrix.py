"""The streams for the virtual machine: which streams of the corpus each of our datasets is made from, and which streams
are made from it and how they are received there. Each case defines this in `vm/corpus/CASE.vm.py`:

  fill    {original dataset: streams it is made from, in order}
  large   datasets that only `--large` uses
  jobs    a generator of Jobs
  trees   (dataset, stream received into it, function that returns the Jobs before the next is received)
  reverse (stream, percent): a share of it goes to `snowmelt receive -s`, and `zfs send -t` gets the token

In such a file, streams, twins and truths are files of the case itself.
"""
import functools
import glob
import os

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class Send:
    """One stream of ours: `zfs send` arguments, with {} for the dataset's original name. `twin` is the stream that ZFS
    made with the same arguments (case, file), used to test this harness."""

    def __init__(self, case, args, twin=None, receive=()):
        self.args, self.twin, self.receive = args.split(), twin and (case, twin), list(receive)


class Piped(Send):
    """A stream of ours that passes through a filter: `zstream ...`, ZFS's own, or `snowmelt stream ...`."""

    def __init__(self, case, args, filter, receive=()):
        super().__init__(case, args, None, receive)
        self.filter = filter.split()


class Base:
    """A stream that ZFS made, received unchanged."""

    def __init__(self, case, stream, receive=()):
        self.case, self.stream, self.receive = case, stream, list(receive)


class Cut:
    """A stream of ours of which only a share (percent) arrives. `snowmelt send -t` sends the rest."""

    def __init__(self, args, share):
        self.args, self.share = args.split(), share


class Note:
    """Something else that the guest does. `truth` is the file (case, file) with the expected result."""

    def __init__(self, case, step, truth=None):
        self.step, self.truth = step, truth and (case, truth)


class Job:
    """Steps that work in one fresh dataset of the guest. `before` are commands run on our pool before the streams are
    made. `truth` (case, file) is a manifest to compare with, if it is not that of the original snapshot."""

    def __init__(self, case, home, title, *steps, before=(), truth=None):
        self.home, self.title, self.steps, self.before = home, title, steps, before
        self.truth = truth and (case, truth)


def pairs(case, home, a, b, ways, receive=()):
    """A full and an incremental stream for each way of sending."""
    for way, twins in ways.items():
        full, incremental = twins or (None, None)
        flags = '' if way == 'plain' else way
        yield Job(case, home, way,
                  Send(case, '%s {}@%s' % (flags, a), full, receive),
                  Send(case, '%s -i @%s {}@%s' % (flags, a, b), incremental, receive))


class Plan:
    """The definitions of one case."""

    def __init__(self, case, said):
        self.case, self.fill, self.large = case, said.get('fill', {}), said.get('large', set())
        self.jobs, self.trees, self.reverse = said.get('jobs', lambda: ()), said.get('trees', ()), said.get(
            'reverse', ())


def plans():
    """case -> its Plan"""
    out = {}
    for path in sorted(glob.glob(os.path.join(HERE, 'vm', 'corpus', '*.vm.py'))):
        case = os.path.basename(path)[:-len('.vm.py')]
        said = {c.__name__: functools.partial(c, case) for c in (Send, Piped, Base, Note, Job, pairs)}
        said['Cut'] = Cut
        with open(path, encoding='utf-8') as f:
            exec(compile(f.read(), path, 'exec'), said)
        out[case] = Plan(case, said)
    return out
