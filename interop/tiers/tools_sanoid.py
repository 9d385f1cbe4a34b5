"""sanoid, as Debian has it: takes, prunes and monitors through a year."""
import datetime
import glob
import os
import re
import shutil

from .report import Failed
from .tools_world import World

BEGIN = datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc)
KEEP = {'hourly': 36, 'daily': 30, 'monthly': 6, 'yearly': 1}
SECONDS = {'hourly': 3600, 'daily': 86400, 'monthly': 31 * 86400, 'yearly': 365 * 86400}
CONFIG = '''[pond/home]
	use_template = all
	recursive = zfs

[template_all]
	frequently = 0
	%s
	weekly = 0
	autosnap = yes
	autoprune = yes
'''


class Sanoid:
    def __init__(self, report, binary, scratch, program):
        self.program = program
        with open(program, errors='replace') as f:
            self.version = re.search(r"VERSION = '([^']*)'", f.read()).group(1)
        self.defaults = os.path.join(os.path.dirname(program), '../share/sanoid/sanoid.defaults.conf')
        found = glob.glob('/usr/lib/*/faketime/libfaketime.so.1')
        if not found:
            raise SystemExit('libfaketime is not there: install faketime')
        self.faketime = found[0]
        self.binary, self.scratch = binary, os.path.join(scratch, 'sanoid-' + self.version)

    def jobs(self):
        yield 'sanoid %s a year' % self.version, self.year

    def world(self, name):
        return World(self.binary, os.path.join(self.scratch, name))

    def run(self, world, when, *words):
        config = world.top + '/sanoid'
        full = ['perl', self.program, '--configdir=' + config, '--cache-dir=%s/cache' % config, '--run-dir=%s/run' % config]
        return world.here.tool([*full, *words], LD_PRELOAD=self.faketime, FAKETIME=when.strftime('@%Y-%m-%d %H:%M:%S'),
                               FAKETIME_DONT_FAKE_MONOTONIC='1', DONT_FAKE_MONOTONIC='1')

    def cron(self, world, when):
        ended = self.run(world, when, '--cron')
        if ended.status != 0 or ended.err:
            raise Failed('%s: %s' % (when, ended))

    def year(self, world):
        config = world.top + '/sanoid'
        for name in ('', '/cache', '/run'):
            os.makedirs(config + name)
        shutil.copy(self.defaults, config)
        with open(config + '/sanoid.conf', 'w') as f:
            f.write(CONFIG % '\n\t'.join('%s = %d' % pair for pair in KEEP.items()))
        world.change('pond/home', 'mine')
        world.change('pond/home/sub', 'mine')
        hour, day = datetime.timedelta(hours=1), datetime.timedelta(days=1)
        times = [BEGIN + n * hour for n in range(24)] + [BEGIN + n * day for n in (*range(1, 300, 3), *range(300, 363))]
        times += [BEGIN + 363 * day + n * hour for n in range(48)]
        for when in times:
            self.cron(world, when)
        for dataset in ('pond/home', 'pond/home/sub'):
            self.kept(world, dataset, times[-1])
        self.monitors(world, times[-1])

    def kept(self, world, dataset, now):
        """What is kept: all that was taken and is not older than the rules say, and for each kind at least the count."""
        rows = world.here.zfs('get', '-Hpd', '1', '-t', 'snapshot', '-o', 'name,value', 'creation', dataset).split('\n')
        found = {}
        for name, creation in (row.split('\t') for row in rows if row):
            short = name.split('@')[1]
            if short == 'mine':
                continue
            stamp, kind = re.fullmatch(r'autosnap_(\d{4}-\d\d-\d\d_\d\d:\d\d:\d\d)_(\w+)', short).groups()
            named = datetime.datetime.strptime(stamp, '%Y-%m-%d_%H:%M:%S').replace(tzinfo=datetime.timezone.utc).timestamp()
            if abs(int(creation) - named) > 5:
                raise Failed('%s was made at %s' % (name, creation))
            found.setdefault(kind, []).append(int(creation))
        if sorted(found) != sorted(KEEP):
            raise Failed('kinds: %s' % sorted(found))
        for kind, count in KEEP.items():
            ages = [now.timestamp() - at for at in found[kind]]
            if not count <= len(ages) <= count + 1 or max(ages) > (count + 1) * SECONDS[kind]:
                raise Failed('%d %s snapshots, the oldest %.1f hours old' % (len(ages), kind, max(ages) / 3600))

    def monitors(self, world, now):
        for option, text in (('--monitor-snapshots', 'OK'), ('--monitor-health', 'OK ZPOOL pond'), ('--monitor-capacity', 'OK ZPOOL pond')):
            ended = self.run(world, now, '--force-update', option) if option == '--monitor-snapshots' else self.run(world, now, option)
            if ended.status != 0 or not ended.out.startswith(text):
                raise Failed('%s' % ended)
        late = self.run(world, now + datetime.timedelta(days=5), '--force-update', '--monitor-snapshots')
        if late.status != 2 or not late.out.startswith('CRIT'):
            raise Failed('five days late: %s' % late)
