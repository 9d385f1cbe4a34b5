"""sanoid from Debian: takes, prunes and monitors snapshots through a year, and gives the same result as `snowmelt
policy`."""
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
# No other check uses a dataset with this name. sanoid prunes nothing of a dataset while ps(1) shows a send or receive
# of it.
CONFIG = '''[pond/kept]
	use_template = all
	recursive = zfs

[template_all]
	frequently = 0
	%s
	weekly = 0
	autosnap = yes
	autoprune = yes
'''

# For sanoid and for `snowmelt policy`: children with their own sections, and days around the end of summer time.
ZONE, AUTUMN = 'Europe/Vienna', datetime.datetime(2026, 10, 21, 15, 0, tzinfo=datetime.timezone.utc)
DATASETS = ('pond/kept', 'pond/kept/a', 'pond/kept/a/b', 'pond/kept/quiet', 'pond/vm', 'pond/vm/disk', 'pond/left')
SECTIONS = '''[pond/kept]
	use_template = production
	recursive = yes
	process_children_only = yes
[pond/kept/a/b]
	use_template = production,few
	hourly = 2
[pond/kept/quiet]
	use_template = ignore
[pond/vm]
	use_template = few
	recursive = zfs

[template_production]
	frequently = 0
	hourly = 9
	daily = 3
	weekly = 1
	monthly = 1
	weekly_wday = 6
	autosnap = yes
	autoprune = yes
[template_few]
	frequently = 3
	frequent_period = 30
	hourly = 4
	hourly_min = 15
	daily = 2
	daily_hour = 5
	daily_min = 30
	monthly = 0
	yearly = 1
[template_ignore]
	autoprune = no
	autosnap = no
	monitor = no
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
        yield 'sanoid %s and policy' % self.version, self.policy

    def world(self, name):
        return World(self.binary, os.path.join(self.scratch, name))

    def run(self, world, when, *words, **env):
        config = world.top + '/sanoid'
        full = ['perl', self.program, '--configdir=' + config, '--cache-dir=%s/cache' % config,
                '--run-dir=%s/run' % config]
        return world.here.tool([*full, *words], **self.at(when), **env)

    def at(self, when):
        """An environment with this simulated time, also in the hour that occurs twice."""
        return dict(LD_PRELOAD=self.faketime, FAKETIME='@%d' % when.timestamp(), FAKETIME_FMT='%s',
                    FAKETIME_DONT_FAKE_MONOTONIC='1',
                    DONT_FAKE_MONOTONIC='1')

    def cron(self, world, when, *words, **env):
        ended = self.run(world, when, '--cron', *words, **env)
        if ended.status != 0 or ended.err:
            raise Failed('%s: %s' % (when, ended))

    def configure(self, world, sections):
        """The directory with a configuration and the defaults."""
        config = world.top + '/sanoid'
        for name in ('', '/cache', '/run'):
            os.makedirs(config + name)
        shutil.copy(self.defaults, config)
        with open(config + '/sanoid.conf', 'w') as f:
            f.write(sections)
        return config

    def year(self, world):
        self.configure(world, CONFIG % '\n\t'.join('%s = %d' % pair for pair in KEEP.items()))
        world.change('pond/kept', 'mine')
        world.change('pond/kept/sub', 'mine')
        hour, day = datetime.timedelta(hours=1), datetime.timedelta(days=1)
        times = [BEGIN + n * hour for n in range(24)] + [BEGIN + n * day for n in (*range(1, 300, 3), *range(300, 363))]
        times += [BEGIN + 363 * day + n * hour for n in range(48)]
        for when in times:
            self.cron(world, when)
        for dataset in ('pond/kept', 'pond/kept/sub'):
            self.kept(world, dataset, times[-1])
        self.monitors(world, times[-1])

    def policy(self, world):
        """One machine follows a configuration with sanoid, the other with `snowmelt policy`. They must have the same
        snapshots."""
        config = self.configure(world, SECTIONS)
        world.there.create_pool('pond')
        for dataset in DATASETS:
            for machine in (world.here, world.there):
                machine.ok('create', dataset)
        minute = datetime.timedelta(minutes=1)
        # Every half hour, then less often, then about daily, over the end of summer time. Not in that night: in the
        # hour that occurs twice, sanoid takes some snapshots twice and others not at all.
        for times in ([AUTUMN + n * 30 * minute for n in range(12)], [AUTUMN + n * 420 * minute for n in range(1, 11)],
                      [AUTUMN + n * 1500 * minute for n in range(4, 12)]):
            # Once more when nothing is due, because sanoid prunes by the state before it took snapshots.
            for when in [*times, times[-1] + 5 * minute]:
                self.cron(world, when, '--force-update', TZ=ZONE)
                ended = world.there.tool([world.there.binary, 'policy', 'run-once', '--config',
                                          config + '/sanoid.conf'],
                                         TZ=ZONE, XDG_STATE_HOME=world.there.top + '/state', **self.at(when))
                if ended.status != 0 or ended.err:
                    raise Failed('%s: %s' % (when, ended))
            self.alike(world, times[-1])

    def alike(self, world, now):
        for dataset in DATASETS:
            # The two do not run within the same second.
            ours, theirs = ({re.sub(r':\d\d(_\w+)$', r'\1', name) for name in machine.of(dataset)}
                            for machine in (world.there, world.here))
            if ours != theirs:
                raise Failed('%s of %s: only sanoid has %s, only policy has %s'
                             % (dataset, now, sorted(theirs - ours), sorted(ours - theirs)))

    def kept(self, world, dataset, now):
        """Checks the kept snapshots: all that are not older than the rules allow, and for each kind at least the count.
        """
        rows = world.here.zfs('get', '-Hpd', '1', '-t', 'snapshot', '-o', 'name,value', 'creation', dataset).split('\n')
        found = {}
        for name, creation in (row.split('\t') for row in rows if row):
            short = name.split('@')[1]
            if short == 'mine':
                continue
            stamp, kind = re.fullmatch(r'autosnap_(\d{4}-\d\d-\d\d_\d\d:\d\d:\d\d)_(\w+)', short).groups()
            named = datetime.datetime.strptime(stamp,
                                               '%Y-%m-%d_%H:%M:%S').replace(tzinfo=datetime.timezone.utc).timestamp()
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
        for option, text in (('--monitor-snapshots', 'OK'), ('--monitor-health', 'OK ZPOOL pond'),
                             ('--monitor-capacity', 'OK ZPOOL pond')):
            ended = self.run(world, now, '--force-update',
                             option) if option == '--monitor-snapshots' else self.run(world, now, option)
            if ended.status != 0 or not ended.out.startswith(text):
                raise Failed('%s' % ended)
        late = self.run(world, now + datetime.timedelta(days=5), '--force-update', '--monitor-snapshots')
        if late.status != 2 or not late.out.startswith('CRIT'):
            raise Failed('five days late: %s' % late)
