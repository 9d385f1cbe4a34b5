"""Tools for ZFS, unmodified, on pools of snowmelt. Our `zfs` and `zpool` come first in their PATH."""
import concurrent.futures
import os
import shutil
import subprocess

from .corpus import ROOT
from .report import Failed
from .tools_autobackup import Autobackup
from .tools_sanoid import Sanoid
from .tools_syncoid import Syncoid
from .tools_zrepl import Zrepl


def directory():
    """The directory of tools that the system does not have. They are fetched if needed."""
    d = os.environ.get('SNOWMELT_TOOLS') or os.path.join(
        os.environ.get('CARGO_TARGET_DIR', os.path.join(ROOT, 'target')), 'interop-tools')
    ended = subprocess.run([os.path.join(ROOT, 'interop', 'tools', 'fetch.sh'), d], stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True)
    if ended.returncode != 0:
        raise SystemExit('the tools could not be got:\n%s' % ended.stdout)
    return d


def run(report, binary, scratch, args):
    d = directory()
    own, newer = '/usr/sbin', d + '/sanoid/usr/sbin'
    # Only one syncoid at a time: it mistakes a process on any machine that receives into a dataset of the same name for
    # its own.
    lanes = [[Syncoid(report, binary, scratch, '%s/syncoid' % place) for place in (own, newer)],
             [Sanoid(report, binary, scratch, newer + '/sanoid'),
              Autobackup(report, binary, scratch, d + '/autobackup')]]
    # Debian has no package of zrepl, and its Go is too old to build it.
    zrepl = os.environ.get('ZREPL') or shutil.which('zrepl')
    if zrepl:
        lanes[1].append(Zrepl(report, binary, scratch, zrepl))
    else:
        print('SKIPPED  zrepl: it is not in the PATH, and ZREPL does not name it')
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for done in [pool.submit(all_of, report, lane) for lane in lanes]:
            done.result()


def all_of(report, suites):
    for suite in suites:
        for name, test in suite.jobs():
            if report.wants(name):
                one(report, suite, name, test)


def one(report, suite, name, test):
    world = suite.world(test.__name__)
    try:
        test(world)
        world.checked()
        report.check(name, None)
    except Failed as e:
        report.check(name, e)
    finally:
        world.close()
