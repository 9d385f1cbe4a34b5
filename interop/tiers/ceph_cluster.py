"""A small Ceph on loopback from Debian's packages: a monitor, three OSDs that keep three copies of everything, and an
S3 gateway (RGW).

It has its own network and processes (`enter`). Its ports are therefore free, and nothing of it remains when the tier
ends, in whatever way.
"""
import base64
import email.utils
import fcntl
import hashlib
import hmac
import http.client
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import time
import uuid
import xml.etree.ElementTree

from .report import Failed

OSDS = 3
MON, MON_OLD, RGW = 3300, 6789, 8000
ACCESS, SECRET = 'test', 'testsecret'
PROGRAMS = {'ceph-mon': 'ceph-mon', 'ceph-osd': 'ceph-osd', 'radosgw': 'radosgw', 'radosgw-admin': 'ceph-common',
            'ceph': 'ceph-common',
            'monmaptool': 'ceph-common', 'ceph-authtool': 'ceph-common', 'unshare': 'util-linux'}
INSIDE = 'SNOWMELT_INTEROP_NAMESPACE'
START_TIMEOUT = 120     # seconds for each part to answer
SIOCSIFFLAGS, IFF_UP = 0x8914, 1

CONF = """
[global]
fsid = {fsid}
mon host = [v2:127.0.0.1:{mon},v1:127.0.0.1:{mon_old}]
public addr = 127.0.0.1
cluster addr = 127.0.0.1
keyring = {d}/keyring
auth allow insecure global id reclaim = true
run dir = {d}
admin socket = {d}/$name.asok
pid file =
log file = {d}/$name.log
mon data = {d}/mon
osd data = {d}/osd$id
rgw data = {d}/rgw

# three copies, on three OSDs of one machine; with one of them down all goes on
osd pool default size = 3
osd pool default min size = 2
osd crush chooseleaf type = 0
osd pool default pg num = 8
osd pool default pgp num = 8
osd pool default pg autoscale mode = off
mon max pg per osd = 1000
mon osd min down reporters = 1
mon osd reporter subtree level = osd
osd recovery sleep = 0

# a disk that others use too
mon data avail warn = 1
mon data avail crit = 1
mon osd nearfull ratio = .97
mon osd backfillfull ratio = .98
mon osd full ratio = .99
osd failsafe full ratio = .99
osd objectstore = bluestore
bluestore block size = {device_bytes}
osd memory target = 939524096

rgw frontends = beast endpoint=127.0.0.1:{rgw}
rgw dynamic resharding = false
rgw enable usage log = false
"""


def enter():
    """Starts this program again as the first process of a new namespace, unless that was already done."""
    missing = sorted({package for program, package in PROGRAMS.items() if not shutil.which(program)})
    if missing:
        sys.exit('this tier needs Debian\'s packages %s: .ci/run setup installs them' % ' '.join(missing))
    if os.environ.get(INSIDE) != '1':
        if os.geteuid() != 0:
            sys.exit('this tier must run as root: it makes a network of its own')
        os.environ[INSIDE] = '1'
        words = ['unshare', '--net', '--pid', '--fork', '--kill-child', '--mount-proc', sys.executable, *sys.argv]
        os.execvp(words[0], words)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        fcntl.ioctl(s, SIOCSIFFLAGS, struct.pack('16sh', b'lo', IFF_UP))


def until(what, condition, timeout=START_TIMEOUT, pause=0.2):
    """Waits until a condition is true. Returns its value."""
    end = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise Failed('%s: not within %d s' % (what, timeout))
        time.sleep(pause)


class Cluster:
    """The daemons. `device_bytes` is the size of each OSD's file, which is sparse."""

    def __init__(self, directory, device_bytes):
        self.d, self.device_bytes = directory, device_bytes
        self.daemons = {}
        os.makedirs(directory)

    def words(self, program, *args):
        return [program, '-c', self.d + '/ceph.conf', *args]

    def tool(self, program, *args, timeout=START_TIMEOUT):
        """The output of a program of Ceph."""
        words = self.words(program, *args)
        try:
            done = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  text=True, timeout=timeout)
        except subprocess.TimeoutExpired:
            raise Failed('%s: no end within %d s' % (' '.join(words), timeout))
        if done.returncode != 0:
            raise Failed('%s gave %d: %s' % (' '.join(words), done.returncode, done.stderr))
        return done.stdout

    def ceph(self, *args):
        """The answer of the monitor."""
        return json.loads(self.tool('ceph', '--connect-timeout', '30', '-f', 'json', *args) or 'null')

    def spawn(self, name, *words):
        log = open('%s/%s.out' % (self.d, name), 'ab')
        self.daemons[name] = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                              start_new_session=True)
        log.close()

    def alive(self, name):
        daemon = self.daemons[name]
        if daemon.poll() is not None:
            with open('%s/%s.out' % (self.d, name)) as f:
                raise Failed('%s has ended with %d: %s' % (name, daemon.returncode, f.read()[-1000:]))
        return True

    def start(self):
        d, fsid = self.d, str(uuid.uuid4())
        for name in ['mon', 'rgw', *('osd%d' % i for i in range(OSDS))]:
            os.mkdir('%s/%s' % (d, name))
        with open(d + '/ceph.conf', 'w') as f:
            f.write(CONF.format(d=d, fsid=fsid, mon=MON, mon_old=MON_OLD, rgw=RGW, device_bytes=self.device_bytes))
        self.keys()
        address = '[v2:127.0.0.1:%d,v1:127.0.0.1:%d]' % (MON, MON_OLD)
        self.tool('monmaptool', '--create', '--clobber', '--fsid', fsid, '--addv', 'a', address, d + '/monmap')
        self.tool('ceph-mon', '-i', 'a', '--mkfs', '--monmap', d + '/monmap', '--keyring', d + '/keyring')
        self.spawn('mon.a', *self.words('ceph-mon', '-i', 'a', '-f'))
        for i in range(OSDS):
            made = str(uuid.uuid4())
            self.ceph('osd', 'new', made, str(i))
            self.tool('ceph-osd', '-i', str(i), '--mkfs', '--osd-uuid', made)
            self.revive(i)
        self.all_up()
        self.spawn('rgw', *self.words('radosgw', '-n', 'client.admin', '-f'))
        until('the gateway listens', lambda: self.alive('rgw') and self.listens())
        self.tool('radosgw-admin', '-n', 'client.admin', 'user', 'create', '--uid=t', '--display-name=t',
                  '--access-key=' + ACCESS, '--secret-key=' + SECRET)

    def keys(self):
        """One keyring for all daemons."""
        ring = self.d + '/keyring'
        self.tool('ceph-authtool', '--create-keyring', ring, '--gen-key', '-n', 'mon.', '--cap', 'mon', 'allow *')
        caps = ['--cap', 'mon', 'allow *', '--cap', 'osd', 'allow *', '--cap', 'mgr', 'allow *']
        self.tool('ceph-authtool', ring, '--gen-key', '-n', 'client.admin', *caps)
        for i in range(OSDS):
            self.tool('ceph-authtool', ring, '--gen-key', '-n', 'osd.%d' % i, '--cap', 'mon', 'allow profile osd',
                      '--cap', 'osd', 'allow *')

    def listens(self):
        try:
            with socket.create_connection(('127.0.0.1', RGW), 5):
                return True
        except OSError:
            return False

    def kill(self, i):
        """Kills an OSD, and waits until the monitor has noticed."""
        daemon = self.daemons['osd.%d' % i]
        daemon.kill()
        daemon.wait()
        until('osd.%d is down' % i, lambda: not self.up(i))

    def revive(self, i):
        """Starts an OSD with its existing data."""
        self.spawn('osd.%d' % i, *self.words('ceph-osd', '-i', str(i), '-f'))

    def up(self, i):
        return any(osd['osd'] == i and osd['up'] for osd in self.ceph('osd', 'dump')['osds'])

    def all_up(self):
        """Waits for all OSDs."""
        until('all OSDs are up', lambda: all(self.alive('osd.%d' % i) and self.up(i) for i in range(OSDS)))

    def copies(self):
        """Number of copies of an object."""
        pools = {pool['pool_name']: pool['size'] for pool in self.ceph('osd', 'dump')['pools']}
        return pools.get('default.rgw.buckets.data')

    def stop(self):
        for daemon in self.daemons.values():
            if daemon.poll() is None:
                daemon.kill()
            daemon.wait()


class Bucket:
    """A bucket, accessed directly with the S3 protocol."""

    def __init__(self, name):
        self.name = name
        status, said = self.request('PUT')
        if status != 200:
            raise Failed('the bucket could not be made: %d %s' % (status, said))

    def request(self, method, key='', body=b'', headers=(), query=''):
        """Sends a request. Returns status and body of the answer. It is signed as in AWS before 2014, which RGW still
        accepts, because that is short."""
        resource = '/%s%s' % (self.name, '/' + key if key else '')
        date = email.utils.formatdate(usegmt=True)
        signed = hmac.new(SECRET.encode(), '\n'.join((method, '', '', date, resource)).encode(), hashlib.sha1)
        headers = dict(headers, Date=date, Authorization='AWS %s:%s'
                       % (ACCESS, base64.b64encode(signed.digest()).decode()))
        connection = http.client.HTTPConnection('127.0.0.1', RGW, timeout=120)
        try:
            connection.request(method, resource + query, body=body, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def create(self, key, body):
        """Puts an object that must not exist yet. Returns the status."""
        return self.request('PUT', key, body, {'If-None-Match': '*'})[0]

    def sizes(self):
        """Key and length of every object."""
        found, marker = {}, ''
        while True:
            status, said = self.request('GET', query='?max-keys=1000&marker=' + marker)
            if status != 200:
                raise Failed('listing the bucket: %d %s' % (status, said))
            page = xml.etree.ElementTree.fromstring(said)
            space = page.tag.partition('}')[0] + '}' if page.tag.startswith('{') else ''
            contents = page.findall(space + 'Contents')
            found.update((entry.findtext(space + 'Key'), int(entry.findtext(space + 'Size'))) for entry in contents)
            if page.findtext(space + 'IsTruncated') != 'true':
                return found
            marker = contents[-1].findtext(space + 'Key')
