#!/usr/bin/env python3
"""Make testdata/ from a corpus: the streams that test the most in the fewest bytes.

  subset.py CORPUS_DIR TESTDATA_DIR [CASE...]

CORPUS_DIR holds unpacked cases (a directory each, see pack.sh). For each named case, or for all in CHOICE, the listed
streams are kept without their dumps. chains.tsv, snapshots.tsv and index.json are reduced to the entries for those
streams. A case becomes TESTDATA_DIR/streams/CASE.tar.zst: one zstd frame with its content size, holding a plain ustar
archive. If 00-demo exists, it is copied as plain files to TESTDATA_DIR/demo.
"""
import io, json, os, subprocess, sys, tarfile

CHOICE = {
    '01-basic': ['full-0', 'inc-0-1', 'inc-1-2', 'inc-2-3', 'inc-3-4-empty', 'inc-0-3'],
    '03-compress': ['gzip-6-full-c', 'lz4-full-ce', 'lz4-inc-c', 'lzjb-full-c', 'zstd-3-full-c', 'zstd-3-inc-c'],
    '06-xattr': None,
    '07-special': None,
    '08-zvol': ['8K-plain-full', '8K-plain-inc1'],
    '09-replicate': ['R-h-r2', 'R-I-r2-r4'],
    '10-resume': [],
    '11-raw': ['ccmraw-w-full', 'ccmraw-w-inc'],
    '12-redact': ['redacted-Lec', 'clone-from-mark'],
    '13-quota-names': None,
    '14-large': ['full-Lec'],
    '15-corrupt': None,
    '16-newer': ['long-full', 'long-inc'],
    '17-suites': ['%s-%s-%s-full' % (length, mode, form) for length in (128, 192, 256) for mode in ('ccm', 'gcm')
                  for form in ('raw', 'hex', 'passphrase')],
    '18-zstream': ['%s-%s' % (tool, what) for tool in ('redup', 'recompress-zstd', 'decompress') for what in ('R', 'full', 'pkg')],
}
EXTRA = ('keys', 'props', 'acct', 'keys.tsv', 'expected.jsonl', 'zfs-said.jsonl', 'base-w.key')


def rows(path):
    with open(path, encoding='utf-8') as f:
        return [s.rstrip('\n').split('\t') for s in f]


def table(lines):
    return ''.join('\t'.join(r) + '\n' for r in lines).encode()


def pick(top, wanted):
    """name in the archive -> bytes"""
    def read(name):
        with open(os.path.join(top, name), 'rb') as f:
            return f.read()

    out = {}
    for name in os.listdir(top):
        stem, dot, end = name.rpartition('.')
        if end in ('zstream', 'token') or name.endswith('.token.txt'):
            if end != 'zstream' or wanted is None or stem in wanted:
                out[name] = read(name)
        elif name in EXTRA and os.path.isfile(os.path.join(top, name)):
            out[name] = read(name)
        elif name in EXTRA:
            out.update({name + '/' + n: read(name + '/' + n) for n in os.listdir(os.path.join(top, name))})
    chains, broken = [], set()
    for row in rows(top + '/chains.tsv'):
        if row[0] in broken or not (row[1] in out or row[1].startswith('key=')):
            broken.add(row[0])      # a chain is useless after a stream that was left out
        else:
            chains.append(row)
    chains = [r for r in chains if any(c[0] == r[0] and c[1] in out for c in chains)]
    out['chains.tsv'] = table(chains)
    index = json.loads(read('index.json'))
    guids = {s['toguid'] for s in index['streams'] if s['file'] in out} | \
            {s['fromguid'] for s in index['streams'] if s['file'] in out}
    compound = any(s['compound'] for s in index['streams'] if s['file'] in out)
    snaps = [r for r in rows(top + '/snapshots.tsv') if compound or r[0] in guids or wanted is None]
    for row in snaps:
        out[row[3]] = read(row[3])
    for name in os.listdir(top + '/manifest'):
        if name.endswith('-as-received.jsonl') and name.replace('-as-received.jsonl', '.zstream') in out:
            out['manifest/' + name] = read('manifest/' + name)
    out['snapshots.tsv'] = table(snaps)
    index['streams'] = [s for s in index['streams'] if s['file'] in out]
    index['snapshots'] = [s for s in index['snapshots'] if s['manifest'] in out]
    index['chains'] = [c for c in index['chains'] if any(r[0] == c['name'] for r in chains)]
    out['index.json'] = json.dumps(index, indent=1, ensure_ascii=False).encode() + b'\n'
    out['case.txt'] = read('case.txt')
    return out


def pack(name, files, path):
    buf = io.BytesIO()
    with tarfile.open(fileobj=buf, mode='w', format=tarfile.USTAR_FORMAT) as tar:
        # similar files side by side, which compress better
        for f in sorted(files, key=lambda n: (n.rpartition('.')[2], n)):
            info = tarfile.TarInfo(name + '/' + f)
            info.size, info.mode = len(files[f]), 0o644
            tar.addfile(info, io.BytesIO(files[f]))
    raw = path[:-4]
    with open(raw, 'wb') as f:
        f.write(buf.getvalue())
    subprocess.run(['zstd', '-q', '--ultra', '-22', '--long=27', '--rm', '-f', raw, '-o', path], check=True)


def main(corpus, testdata, *cases):
    os.makedirs(testdata + '/streams', exist_ok=True)
    total = 0
    for case, wanted in CHOICE.items():
        if cases and case not in cases:
            continue
        path = '%s/streams/%s.tar.zst' % (testdata, case)
        files = pick('%s/%s' % (corpus, case), wanted)
        pack(case, files, path)
        total += os.path.getsize(path)
        print('%8d  %4d files  %s' % (os.path.getsize(path), len(files), case))
    if os.path.isdir(corpus + '/00-demo') and not cases:
        files = pick(corpus + '/00-demo', None)
        for f, data in files.items():
            path = '%s/demo/%s' % (testdata, f)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, 'wb') as out:
                out.write(data)
        total += sum(map(len, files.values()))
    print('%8d  in all' % total)


if __name__ == '__main__':
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
