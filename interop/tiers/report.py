"""Prints one line per check, and a count at the end."""
import sys
import threading
import time


class Report:
    """Collects checks from several threads. `only` keeps those whose name contains that text."""

    def __init__(self, only='', quiet=False):
        self.only, self.quiet = only, quiet
        self.passed, self.failures = 0, []
        self.lock = threading.Lock()
        self.begun = time.monotonic()

    def wants(self, name):
        return self.only in name

    def check(self, name, why):
        """Records a check. `why` is None if it passed, otherwise the reason of the failure."""
        with self.lock:
            if why is None:
                self.passed += 1
                if not self.quiet:
                    print('ok    %s' % name)
            else:
                self.failures.append(name)
                print('FAIL  %s' % name)
                lines = str(why).rstrip().split('\n')
                for line in lines[:8] + lines[8:][-6:]:
                    print('        %s' % line[:400])
            sys.stdout.flush()
        return why is None

    def end(self):
        """Prints the totals. Returns the exit status."""
        for name in self.failures:
            print('failed: %s' % name)
        print('%d passed, %d failed, %.0f s' % (self.passed, len(self.failures), time.monotonic() - self.begun))
        if self.passed + len(self.failures) == 0:
            print('nothing was checked')
            return 1
        return 1 if self.failures else 0


class Failed(Exception):
    """A step failed on which the rest of its check depends."""
