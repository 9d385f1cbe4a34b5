"""Runs inside the virtual machine: receives the streams of /share/plan.json with real ZFS and records the results.

plan.json is a list of jobs {id, steps, dataset?}. A job works in the named dataset, by default in one of its own. A
step is one of
  {receive: FILE, args: [...], cut: BYTES?}   with cut, only the first bytes, with -s; the host is
                                              then asked for the rest, with the token
  {key: FILE}                                 load this key
  {unload: true}                              unload it again
  {send_token: TOKEN, out: FILE}              zfs send -t
  {dump: FILE}                                zstream dump
  {props: true} {holds: true} {space: true}   record received properties, holds, quotas
Every snapshot that exists after the job is recorded with its manifest. The answer is /share/out/ID.json: {steps:
[{status, text}], snapshots: [{name, guid, creation, manifest}]}.
"""
import contextlib
import io
import json
import os
import subprocess
import sys
import time

sys.path.insert(0, '/scripts')
import manifest     # noqa: E402

POOL, MOUNT, SHARE = 'tank', '/mnt/m', '/share'
ANSWER_SECONDS = 300


def zfs(*args, stdin=None, feed=None):
    p = subprocess.run(['zfs', *args], stdin=open(stdin, 'rb') if stdin else subprocess.DEVNULL if feed is None
                       else None,
                       input=feed, capture_output=True)
    return p.returncode, p.stdout.decode('utf-8', 'surrogateescape'), p.stderr.decode('utf-8', 'replace')


def listing(*args):
    return [s.split('\t') for s in zfs(*args)[1].split('\n') if s]


def volume_device(name):
    for _ in range(100):
        for d in os.listdir('/dev'):
            if d.startswith('zd') and 'p' not in d:
                got = subprocess.run(['/usr/lib/udev/zvol_id', '/dev/' + d], capture_output=True,
                                     text=True).stdout.strip()
                if got == name:
                    return '/dev/' + d
        time.sleep(0.1)
    raise RuntimeError('no device for ' + name)


def manifest_of(name, volsize, volblocksize):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        if volsize != '-':
            dataset = name.split('@')[0]
            zfs('set', 'snapdev=visible', dataset)
            manifest.main(['', 'vol', volume_device(name), volsize, volblocksize])
            zfs('set', 'snapdev=hidden', dataset)
        else:
            p = subprocess.run(['mount', '-t', 'zfs', '-o', 'ro', name, MOUNT], capture_output=True, text=True)
            if p.returncode:
                raise RuntimeError(p.stderr.strip())
            try:
                manifest.main(['', 'fs', MOUNT])
            finally:
                subprocess.run(['umount', MOUNT])
    return out.getvalue().split('\n')


def ask(token, number):
    """Asks the host to run `snowmelt send -t`."""
    name = '%s/ask/%s' % (SHARE, number)
    with open(name + '.new', 'w') as f:
        f.write(token)
    os.rename(name + '.new', name + '.token')
    for _ in range(ANSWER_SECONDS * 5):
        if os.path.exists(name + '.failed'):
            raise RuntimeError('the host could not send the rest: ' + open(name + '.failed').read())
        if os.path.exists(name + '.rest'):
            return name + '.rest'
        time.sleep(0.2)
    raise RuntimeError('the host did not answer')


def receive(step, dataset, number):
    path = SHARE + '/' + step['receive']
    if 'cut' not in step:
        return zfs('receive', '-u', *step['args'], dataset, stdin=path)
    with open(path, 'rb') as f:
        head = f.read(step['cut'])
    status, _, text = zfs('receive', '-u', '-s', *step['args'], dataset, feed=head)
    if status == 0:
        return 1, '', 'the cut was not noticed'
    token = zfs('get', '-Ho', 'value', 'receive_resume_token', dataset)[1].strip()
    if token in ('', '-'):
        return 1, '', 'no token: ' + text
    return zfs('receive', '-u', '-s', dataset, stdin=ask(token, number))


def run_step(step, dataset, number):
    if 'receive' in step:
        status, _, text = receive(step, dataset, number)
    elif 'key' in step:
        status, _, text = zfs('load-key', '-L', 'file://%s/%s' % (SHARE, step['key']), dataset)
    elif 'unload' in step:
        status, _, text = zfs('unload-key', '-r', dataset)
    elif 'send_token' in step:
        with open('%s/%s' % (SHARE, step['out']), 'wb') as f:
            p = subprocess.run(['zfs', 'send', '-t', step['send_token']], stdin=subprocess.DEVNULL, stdout=f,
                               stderr=subprocess.PIPE)
        status, text = p.returncode, p.stderr.decode('utf-8', 'replace')
    elif 'dump' in step:
        p = subprocess.run(['zstream', 'dump', SHARE + '/' + step['dump']], capture_output=True)
        status, text = p.returncode, (p.stdout[-2000:] + p.stderr).decode('utf-8', 'replace')
    elif 'props' in step:
        status, text, _ = zfs('get', '-rHp', '-s', 'received', '-o', 'name,property,value', 'all', dataset)
    elif 'holds' in step:
        names = [r[0] for r in listing('list', '-rHo', 'name', '-t', 'snapshot', dataset)]
        status, text, _ = zfs('holds', '-H', *names)
    elif 'space' in step:
        text, status = '', 0
        for kind in ('userspace', 'groupspace', 'projectspace'):
            code, out, _ = zfs(kind, '-Hp', '-o', 'type,name,used,quota,objused,objquota', dataset)
            text, status = text + out, status or code
    else:
        status, text = 1, 'no such step: %r' % step
    return {'status': status, 'text': text[-20000:]}


def run_job(job):
    dataset = job.get('dataset') or '%s/j%s' % (POOL, job['id'])
    answer = {'steps': [], 'snapshots': [], 'dataset': dataset}
    begun = time.monotonic()
    for i, step in enumerate(job['steps']):
        try:
            answer['steps'].append(run_step(step, dataset, '%s-%d' % (job['id'], i)))
        except (RuntimeError, OSError) as e:
            answer['steps'].append({'status': 1, 'text': str(e)})
        if answer['steps'][-1]['status']:
            break
    answer['receive_seconds'] = time.monotonic() - begun
    for name, guid, creation, volsize, volblocksize in listing(
        'list', '-rHpo', 'name,guid,creation,volsize,volblocksize', '-t', 'snapshot', dataset):
        if volsize != '-':
            volblocksize = zfs('get', '-Hpo', 'value', 'volblocksize', name.split('@')[0])[1].strip()
        snap = {'name': name[len(dataset):], 'guid': guid, 'creation': int(creation)}
        try:
            snap['manifest'] = manifest_of(name, volsize, volblocksize)
        except (RuntimeError, OSError, SystemExit) as e:
            snap['error'] = str(e)
        answer['snapshots'].append(snap)
    answer['seconds'] = time.monotonic() - begun
    return answer


def make_pool():
    os.makedirs(MOUNT, exist_ok=True)
    sys.setrecursionlimit(5000)
    image = '/tmp/%s.img' % POOL
    with open(image, 'w') as f:
        f.truncate(6 << 30)
    subprocess.run(['zpool', 'create', '-o', 'cachefile=none', '-O', 'mountpoint=/mnt/' + POOL, POOL, image],
                   check=True)


def main():
    make_pool()
    with contextlib.suppress(OSError), open('/sys/module/zfs/parameters/zfs_allow_redacted_dataset_mount', 'w') as f:
        f.write('1')
    with open(SHARE + '/plan.json') as f:
        plan = json.load(f)
    for job in plan:
        answer = run_job(job)
        name = '%s/out/%s.json' % (SHARE, job['id'])
        with open(name + '.new', 'w') as f:
            json.dump(answer, f)
        os.rename(name + '.new', name)
    # the stored data must also pass a scrub
    subprocess.run(['zpool', 'scrub', '-w', POOL], check=True)
    status = subprocess.run(['zpool', 'status', POOL], capture_output=True, text=True).stdout
    with open(SHARE + '/out/scrub.json', 'w') as f:
        json.dump({'status': status}, f)
    subprocess.run(['zpool', 'export', '-f', POOL])


if __name__ == '__main__':
    main()
