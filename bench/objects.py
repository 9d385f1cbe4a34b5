"""The cost of a pool in an object store: requests and bytes, counted by an S3 server in this process."""
import os
import re
import socketserver
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler

MIB, GIB = 1 << 20, 1 << 30
PAGE = 1000
LIST = '<?xml version="1.0"?><ListBucketResult>%s<IsTruncated>%s</IsTruncated></ListBucketResult>'
ENTRY = ('<Contents><Key>%s</Key><LastModified>2026-11-21T12:00:00.000Z</LastModified>'
         '<ETag>"1"</ETag><Size>%d</Size></Contents>')


class Cost:
    """Requests by kind, and object bytes in both directions."""

    def __init__(self):
        self.requests = dict.fromkeys(('PUT', 'GET', 'LIST', 'DELETE'), 0)
        self.sent = self.received = 0


class Bucket(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """The part of S3 that a pool needs, in memory."""
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self):
        super().__init__(('127.0.0.1', 0), Requests)
        self.objects, self.lock, self.cost = {}, threading.Lock(), Cost()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def take(self):
        """The cost since the last call."""
        with self.lock:
            cost, self.cost = self.cost, Cost()
        return cost

    def env(self):
        return dict(AWS_ENDPOINT_URL='http://127.0.0.1:%d' % self.server_address[1], AWS_ACCESS_KEY_ID='bench',
                    AWS_SECRET_ACCESS_KEY='bench',
                    AWS_REGION='us-east-1')


class Requests(BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'

    def log_message(self, *args):
        pass

    def answer(self, status, body=b'', **headers):
        self.send_response(status)
        for name, value in dict(headers, ETag='"1"', Last_Modified='Sat, 21 Nov 2026 12:00:00 GMT',
                                Content_Length=str(len(body))).items():
            self.send_header(name.replace('_', '-'), value)
        self.end_headers()
        self.wfile.write(body)

    def key(self, kind):
        """The key and the query of the request, which is counted."""
        path, _, query = self.path.partition('?')
        with self.server.lock:
            self.server.cost.requests[kind] += 1
        return urllib.parse.unquote(path).lstrip('/'), dict(urllib.parse.parse_qsl(query))

    def do_PUT(self):
        key, _ = self.key('PUT')
        body = self.rfile.read(int(self.headers['Content-Length']))
        with self.server.lock:
            self.server.cost.sent += len(body)
            is_new = 'If-None-Match' not in self.headers or key not in self.server.objects
            if is_new:
                self.server.objects[key] = body
        self.answer(200 if is_new else 412)

    def do_GET(self):
        if 'list-type=2' in self.path:
            return self.list()
        key, _ = self.key('GET')
        with self.server.lock:
            body = self.server.objects.get(key)
        if body is None:
            return self.answer(404,
                               b'<?xml version="1.0"?><Error><Code>NoSuchKey</Code><Message>none</Message></Error>')
        whole, asked = len(body), re.fullmatch(r'bytes=(\d+)-(\d+)', self.headers.get('Range', ''))
        headers = {}
        if asked:
            first, last = int(asked[1]), min(int(asked[2]), whole - 1)
            body = body[first:last + 1]
            headers['Content_Range'] = 'bytes %d-%d/%d' % (first, last, whole)
        with self.server.lock:
            self.server.cost.received += len(body)
        return self.answer(206 if asked else 200, body, **headers)

    def list(self):
        bucket, query = self.key('LIST')
        bucket = bucket.rstrip('/') + '/'
        after, prefix = query.get('continuation-token', ''), bucket + query.get('prefix', '')
        with self.server.lock:
            found = sorted((key, len(body)) for key, body in self.server.objects.items() if key.startswith(prefix)
                           and key > after)
        page = ''.join(ENTRY % (key[len(bucket):], length) for key, length in found[:PAGE])
        if len(found) > PAGE:
            page += '<NextContinuationToken>%s</NextContinuationToken>' % found[PAGE - 1][0]
        self.answer(200, (LIST % (page, str(len(found) > PAGE).lower())).encode())

    def do_DELETE(self):
        key, _ = self.key('DELETE')
        with self.server.lock:
            self.server.objects.pop(key, None)
        self.answer(204)


def measure(bench, size):
    """Each command is a separate process without any cache, in memory or on disk."""
    bucket, near, far = Bucket(), bench.home('near'), bench.home('far')
    far.env.update(bucket.env())
    far.ok('pool', 'create', 'cloud', 's3://bucket/cloud')
    blocks = ('--size', size, '--block', '128K')
    bench.piped(near, 'bench/v', 'volume', *blocks, '--guid', 10)
    for n, changes in enumerate((0, 100), 11):
        kind = ('volume-changes', *blocks, '--changes', changes) if changes else ('empty', '--volume')
        bench.piped(near, 'bench/v', *kind, '--guid', n, '--from', n - 1, '--name', 'bench/v@n%d' % n)
    scale = GIB / size

    def rows(what, puts=None, gets=None, per_gib=True):
        cost, factor = bucket.take(), scale if per_gib else 1
        of = ' (per GiB)' if per_gib else ''
        asked = cost.requests
        if asked['PUT'] or puts is not None:
            bench.row('objects: %s, PUT%s' % (what, of), asked['PUT'] * factor, '', limit=puts, at_most=True)
        bench.row('objects: %s, GET and LIST%s' % (what, of), (asked['GET'] + asked['LIST']) * factor, '', limit=gets,
                  at_most=True)
        bench.row('objects: %s, sent%s' % (what, of), cost.sent * factor / MIB, 'MiB')
        bench.row('objects: %s, received%s' % (what, of), cost.received * factor / MIB, 'MiB')

    def sent(*words):
        path = os.path.join(bench.dir, 'sent')
        near.send(path, *words)
        return path

    bucket.take()
    far.receive('cloud/v', sent('bench/v@a'))
    rows('receive', puts=40)
    far.receive('cloud/v', sent('-i', '@a', 'bench/v@n11'))
    rows('empty incremental', puts=4, per_gib=False)
    far.receive('cloud/v', sent('-i', '@n11', 'bench/v@n12'))
    rows('100 changed blocks of 128 KiB', puts=8, per_gib=False)
    far.ok('list', '-t', 'all', '-r', 'cloud')
    rows('list, nothing cached', puts=0, gets=10, per_gib=False)
    far.ok('pool', 'scrub', '-w', 'cloud')
    rows('scrub')
    far.ok('send', 'cloud/v@a', stdout='/dev/null')
    rows('send')
    far.ok('destroy', '-r', 'cloud/v')
    rows('destroy', per_gib=False)
    bucket.shutdown()
    bucket.server_close()
    for melt in (near, far):
        melt.close()
