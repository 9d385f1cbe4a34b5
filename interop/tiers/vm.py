"""Our streams, received by real ZFS in a virtual machine and compared with the expected contents."""
import concurrent.futures
import glob
import json
import os
import shutil
import subprocess
import threading
import time

from . import corpus, manifests
from .report import Failed
from .snowmelt import Snowmelt
from .vm_matrix import Base, Cut, Note, Piped, Send, plans

VM = os.path.join(corpus.HERE, 'vm')
HOME = 'tank'
MACHINES = 2                # each keeps about one core busy
MACHINE_MIB = 3072
TIMEOUT = 2400              # seconds for one machine with all its jobs


def suite():
    return os.environ.get('SUITE', 'bookworm')


def suite_dir():
    return os.path.join(os.environ.get('ZFS_VM_DIR', os.path.join(corpus.ROOT, 'target', 'zfs-vm')), suite())


class Zstream:
    """ZFS's own program `zstream`, run here from the tree from which the virtual machine was built."""

    def __init__(self):
        root = os.path.join(suite_dir(), 'root')
        libs = [os.path.join(root, d) for d in ('usr/lib/x86_64-linux-gnu', 'lib/x86_64-linux-gnu', 'usr/lib', 'lib')]
        loader = os.path.join(root, 'lib64/ld-linux-x86-64.so.2')
        tool = next((t for t in (root + '/usr/sbin/zstream', root + '/sbin/zstream') if os.path.exists(t)), None)
        self.command = [loader, '--library-path', ':'.join(libs), tool] if tool and os.path.exists(loader) else None

    def has(self, verb):
        """Whether this release of ZFS has the verb: `recompress` and `decompress` came with ZFS 2.2."""
        if not self.command:
            return False
        usage = subprocess.run(self.command, capture_output=True)
        return 'zstream %s ' % verb in (usage.stdout + usage.stderr).decode('utf-8', 'replace')

    def refuses(self, path):
        """The reason why `zstream dump` refuses the stream, or None."""
        p = subprocess.run([*self.command, 'dump', path], capture_output=True)
        text = (p.stdout + p.stderr).decode('utf-8', 'replace')
        if p.returncode != 0 or p.stderr or 'SUMMARY' not in text:
            return 'zstream dump gave %d: %s' % (p.returncode, text[-600:])
        return None


class Tier:
    def __init__(self, report, binary, cases, scratch, large=False, self_test=False):
        self.report, self.binary, self.self_test, self.large = report, binary, self_test, large
        self.cases = {c.name: c for c in cases}
        self.plan = {case: plan for case, plan in plans().items() if self.has(case)}
        self.truths = {g: t for c in cases for g, t in c.by_guid.items()}
        self.scratch = os.path.join(scratch, 'vm')
        self.home = Snowmelt(binary, os.path.join(self.scratch, 'home'))
        self.pool_lock = threading.Lock()
        self.zstream = Zstream()
        self.plans = [[] for _ in range(MACHINES)]
        self.weights = [0] * MACHINES
        self.entries = {}       # job id -> (job, label, expected guids)
        self.number = 0

    def share(self, machine):
        return os.path.join(self.scratch, 'share%d' % machine)

    # ---- streams are made on the host ----------------------------------------------------

    def prepare(self):
        for m in range(MACHINES):
            for d in ('ask', 'out', 'streams', 'keys'):
                os.makedirs(os.path.join(self.share(m), d))
            for case in self.cases.values():
                for key in glob.glob(case.path('keys', '*')):
                    shutil.copy(key, os.path.join(self.share(m), 'keys'))
        if not self.self_test:
            self.home.create_pool(HOME)
            self.fill()
        for plan in self.plan.values():
            for job in plan.jobs():
                if job.home not in plan.large or self.large:
                    self.add(job)
        for plan in self.plan.values():
            for dataset, stream, work in plan.trees:
                if not self.self_test and not self.receive_home(dataset, plan.case, stream, '-F'):
                    continue
                for job in work():
                    self.add(job)
        self.reverse_resume()

    def has(self, case):
        """Whether the case exists, and the machine's ZFS is new enough for it."""
        return case in self.cases and not (suite() == 'bookworm' and corpus.script_says(case, 'needs ZFS'))

    def fill(self):
        for plan in self.plan.values():
            for dataset, streams in plan.fill.items():
                if dataset in plan.large and not self.large:
                    continue
                for stream in streams:
                    if not self.receive_home(dataset, plan.case, stream):
                        break

    def receive_home(self, dataset, case, stream, *options):
        try:
            self.home.receive('%s/%s' % (HOME, dataset), self.cases[case].path(stream + '.zstream'), '-u', *options)
            return True
        except Failed as e:
            self.report.check('vm fill %s %s' % (dataset, stream), e)
            return False

    def guids(self, dataset):
        return {name: guid for name, (guid, _) in self.home.snapshots(dataset).items()}

    def add(self, job):
        """Makes the streams of a job and adds it to the plan of the machine that has less to do."""
        self.number += 1
        label = 'vm %s %s' % (job.home, job.title)
        if not self.report.wants(label):
            for command in job.before if not self.self_test else ():
                self.home.run(*[word.format('%s/%s' % (HOME, job.home)) for word in command])
            return
        number, machine = str(self.number), self.weights.index(min(self.weights))
        home = '%s/%s' % (HOME, job.home)
        steps, expected, size = [], set(), 0
        try:
            for command in job.before if not self.self_test else ():
                self.home.ok(*[word.format(home) for word in command])
            for i, step in enumerate(job.steps):
                name = 'streams/%s-%d' % (number, i)
                path = os.path.join(self.share(machine), name)
                if isinstance(step, Note):
                    steps.append(step.step)
                    continue
                if isinstance(step, Base):
                    shutil.copy(self.cases[step.case].path(step.stream + '.zstream'), path)
                    steps.append({'receive': name, 'args': step.receive})
                elif self.self_test and isinstance(step, Send) and step.twin:
                    shutil.copy(self.cases[step.twin[0]].path(step.twin[1] + '.zstream'), path)
                    steps.append({'receive': name, 'args': step.receive})
                elif self.self_test:
                    return
                else:
                    args = [word.format(home) for word in step.args]
                    self.home.send(path, *args)
                    if isinstance(step, Piped) and not self.filter(label, step.filter, path):
                        return
                    if self.zstream.command:
                        self.report.check('%s: zstream dump of %s' % (label, ' '.join(args)),
                                          self.zstream.refuses(path))
                    else:
                        steps.append({'dump': name})
                    expected |= self.expected(args)
                    todo = {'receive': name, 'args': getattr(step, 'receive', [])}
                    if isinstance(step, Cut):
                        todo['cut'] = os.path.getsize(path) * step.share // 100
                    steps.append(todo)
                size += os.path.getsize(path) // 4 + 700000      # every receive has a cost, however small the stream
        except Failed as e:
            self.report.check(label, e)
            return
        self.weights[machine] += size
        self.plans[machine].append({'id': number, 'steps': steps})
        self.entries[number] = (job, label, expected)

    def filter(self, label, words, path):
        """Passes a stream through a filter, and receives the result into a pool of ours."""
        program, *words = words
        command = {'zstream': self.zstream.command, 'snowmelt': [self.binary]}[program]
        if program == 'zstream' and not self.zstream.has(words[0]):
            print('note  %s: the zstream of %s has no %s' % (label, suite(), words[0]), flush=True)
            return False
        # redup reads a file, the others standard input; ZFS's decompress needs a block, which need not exist
        words += [path] if words[-1] == 'redup' else ['1,0'] if words[-1] == 'decompress' else []
        with open(path, 'rb') as source, open(path + '.out', 'wb') as out:
            p = subprocess.run([*command, *words], stdin=source, stdout=out, stderr=subprocess.PIPE)
        os.rename(path + '.out', path)
        problem = None if p.returncode == 0 else 'exit %d: %s' % (
            p.returncode, p.stderr.decode('utf-8', 'replace')[-600:])
        if self.report.check('%s: %s' % (label, ' '.join(words[:2])), problem):
            back = '%s/back-%d' % (HOME, self.number)
            try:
                self.home.receive(back, path, '-u', '-F')
                self.report.check(label + ': taken back', None)
                self.home.run('destroy', '-R', back)
            except Failed as e:
                self.report.check(label + ': taken back', e)
            return True
        return False

    def expected(self, args):
        """The guids that must arrive with a stream of these arguments."""
        dataset, _, top = args[-1].partition('@')
        there = self.guids(dataset)
        own = [n for n in there if n.split('@')[0] == dataset]
        upto = own[:own.index(args[-1]) + 1]
        if '-R' in args:
            names = {n.partition('@')[2] for n in upto}
            if '-I' in args:
                first = args[args.index('-I') + 1].partition('@')[2]
                names = {n.partition('@')[2] for n in upto[upto.index('%s@%s' % (dataset, first)) + 1:]}
            return {g for n, g in there.items() if n.partition('@')[2] in names}
        if '-I' in args:
            first = '%s@%s' % (dataset, args[args.index('-I') + 1].partition('@')[2])
            return {there[n] for n in upto[upto.index(first) + 1:]}
        return {there[args[-1]]}

    def reverse_resume(self):
        """A token that `snowmelt receive -s` made from a cut stream of ZFS, used with `zfs send -t`."""
        self.reverse = []
        plan = next((plan for plan in self.plan.values() if plan.reverse), None)
        if not plan or self.self_test or not self.report.wants('vm resume zfs send -t'):
            return
        case, steps = self.cases[plan.case], []
        for name in ('full', 'inc'):
            shutil.copy(case.path(name + '.zstream'), os.path.join(self.share(0), 'streams', 'zfs-' + name))
            steps.append({'receive': 'streams/zfs-' + name, 'args': []})
        for i, (stream, share) in enumerate(plan.reverse):
            label = 'vm resume zfs send -t after %s cut at %d %%' % (stream, share)
            melt = Snowmelt(self.binary, os.path.join(self.scratch, 'reverse%d' % i))
            try:
                melt.create_pool('pond')
                if stream == 'inc':
                    melt.receive('pond/r', case.path('full.zstream'), '-u')
                path = case.path(stream + '.zstream')
                result = melt.run('receive', '-s', '-u', 'pond/r', stdin=path,
                                  limit=os.path.getsize(path) * share // 100)
                token = melt.token('pond/r')
                if result.status == 0 or not token:
                    raise Failed('no token: %s' % result)
                steps.append({'send_token': token, 'out': 'out/reverse%d' % i})
                self.reverse.append((label, melt, 'out/reverse%d' % i, case))
            except Failed as e:
                self.report.check(label, e)
        self.plans[0].append({'id': 'reverse', 'steps': steps, 'dataset': HOME + '/resume'})
        self.entries['reverse'] = (None, 'vm resume zfs send -t', set())

    # ---- the machines run, and ask for the rest of a stream with a token --------------------

    def machine(self, m):
        share = self.share(m)
        with open(os.path.join(share, 'plan.json'), 'w') as f:
            json.dump(self.plans[m], f)
        env = dict(os.environ, ZFS_VM_MEM=str(MACHINE_MIB), ZFS_VM_CPUS='1')
        child = subprocess.Popen([os.path.join(VM, 'run.sh'), share, os.path.join(VM, 'guest-tier.sh'), str(TIMEOUT)],
                                 env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        said = []
        reader = threading.Thread(target=lambda: said.append(child.stdout.read()))
        reader.start()
        judged = set()
        while child.poll() is None:
            self.answer(share)
            self.judge_new(share, judged)
            time.sleep(0.2)
        reader.join()
        self.judge_new(share, judged)
        text = b''.join(said).decode('utf-8', 'replace')
        self.report.check('vm machine %d ended well' % m, None if child.returncode == 0
                          else 'status %d\n%s' % (child.returncode, text[-3000:]))
        for job in self.plans[m]:
            if job['id'] not in judged:
                self.report.check(self.entries[job['id']][1], 'the machine did not get to it')
        self.scrubbed(m)

    def answer(self, share):
        for path in glob.glob(share + '/ask/*.token'):
            with open(path) as f:
                token = f.read().strip()
            stem = path[:-len('.token')]
            with self.pool_lock:
                result = self.home.run('send', '-t', token, stdout=stem + '.part')
            os.remove(path)
            if result.status == 0:
                why = self.zstream.refuses(stem + '.part') if self.zstream.command else None
                self.report.check('vm send -t for job %s: zstream dump' % os.path.basename(stem), why)
                os.rename(stem + '.part', stem + '.rest')
            else:
                with open(stem + '.failed', 'w') as f:
                    f.write(str(result))

    def judge_new(self, share, judged):
        for path in sorted(glob.glob(share + '/out/*.json')):
            number = os.path.basename(path)[:-len('.json')]
            if number in self.entries and number not in judged:
                judged.add(number)
                with open(path) as f:
                    answer = json.load(f)
                job, label, expected = self.entries[number]
                took = ' (%.0f s)' % answer['seconds']
                self.report.check(label + took, self.judge(job, answer, expected))
                if number == 'reverse':
                    self.judge_reverse(share)

    def scrubbed(self, m):
        path = self.share(m) + '/out/scrub.json'
        if os.path.exists(path):
            with open(path) as f:
                status = json.load(f)['status']
            self.report.check('vm machine %d scrub' % m, None if 'No known data errors' in status
                              and 'with 0 errors' in status else status)

    # ---- the results -------------------------------------------------------------------------

    def judge(self, job, answer, expected):
        for i, step in enumerate(answer['steps']):
            if step['status']:
                return 'step %d of %d failed: %s' % (i + 1, len(job.steps) if job else 0, step['text'])
        there = {s['guid']: s for s in answer['snapshots']}
        if expected - set(there):
            return 'did not arrive: guids %s; there are %s' % (sorted(expected - set(there)),
                                                               [s['name'] for s in answer['snapshots']])
        if not there:
            return 'nothing arrived'
        for guid, snap in there.items():
            if guid not in self.truths:
                return '%s has guid %s, which is none of the corpus' % (snap['name'], guid)
            truth, creation = self.truths[guid]
            if snap['creation'] != creation:
                return '%s: creation %d, was %d' % (snap['name'], snap['creation'], creation)
            if 'error' in snap:
                return '%s: %s' % (snap['name'], snap['error'])
            if job and job.truth:
                truth = self.cases[job.truth[0]].path(job.truth[1])
            why = manifests.difference(truth, snap['manifest'])
            if why:
                return '%s: %s' % (snap['name'], why)
        for step, note in zip(reversed(answer['steps']), reversed(job.steps if job else ())):
            if isinstance(note, Note) and note.truth:
                return self.judge_note(note, step['text'], answer['dataset'])
        return None

    def judge_note(self, note, text, dataset):
        case = self.cases[note.truth[0]]
        got = [r.split('\t') for r in text.split('\n') if r]
        if 'props' in note.step:
            # the top of the tree has another name here; snapdev was set when the manifests were made
            want = {(below(n, 'back/tree'), p, v) for n, p, v, source in corpus.rows(case.path(note.truth[1]))
                    if source == 'received' and p != 'snapdev'}
            have = {(below(n, dataset), p, v) for n, p, v in got if p != 'snapdev'}
        elif 'holds' in note.step:
            want = {(below(n, 'back/tree2'), tag) for n, tag, _ in corpus.rows(case.path(note.truth[1]))}
            have = {(below(r[0], dataset), r[1]) for r in got}
        else:   # quotas and object counts; bytes used depend on the pool
            rows = [r for k in ('userspace', 'groupspace', 'projectspace')
                    for r in corpus.rows(case.path(note.truth[1] % k))]
            want, have = ({(t, n, quota, objused, objquota) for t, n, _, quota, objused, objquota in part}
                          for part in (rows, got))
        if want == have:
            return None
        return 'missing %s\nnot expected %s' % (sorted(want - have), sorted(have - want))

    def judge_reverse(self, share):
        for label, melt, out, case in self.reverse:
            path = os.path.join(share, out)
            try:
                if not os.path.exists(path):
                    raise Failed('zfs send -t gave nothing')
                melt.receive('pond/r', path, '-s', '-u')
                snap, (guid, _) = list(melt.snapshots('pond/r').items())[-1]
                result = melt.ok('manifest', snap)
                self.report.check(label, manifests.difference(case.by_guid[guid][0], result.out)
                                  or melt.checked('pond'))
            except (Failed, KeyError, IndexError) as e:
                self.report.check(label, str(e))


def below(name, top):
    return name[len(top):] if name.startswith(top) else name


def run(report, binary, cases, scratch, args):
    if not os.path.exists(os.path.join(suite_dir(), 'initrd.img')):
        subprocess.run([os.path.join(VM, 'build.sh')], check=True)
    tier = Tier(report, binary, cases, scratch, args.large, args.self_test)
    tier.prepare()
    with concurrent.futures.ThreadPoolExecutor(MACHINES) as pool:
        for done in [pool.submit(tier.machine, m) for m in range(MACHINES) if tier.plans[m]]:
            done.result()
