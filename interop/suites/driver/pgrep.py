"""pgrep(1) for scripts that look for a process as soon as they have killed it: it gets a moment to end.

  pgrep.py PGREP ARGUMENT...
"""
import os
import subprocess
import sys
import time

# Seconds, and how often within them.
MOMENT = 2
LOOKS = 20


def main():
    for _ in range(LOOKS):
        listed = subprocess.run(sys.argv[1:], stdout=subprocess.PIPE, text=True, check=False).stdout.splitlines()
        # With -f it finds this process by its arguments.
        found = [line for line in listed if line.split()[0] != str(os.getpid())]
        if not found:
            return 1
        time.sleep(MOMENT / LOOKS)
    print('\n'.join(found))
    return 0


if __name__ == '__main__':
    sys.exit(main())
