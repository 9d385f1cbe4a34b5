"""Runs a command, and takes note of the end of every process that it leaves behind.

  reaper.py COMMAND...

Some scripts kill a process and look whether it is gone. The first process of a container may not see to that.
"""
import ctypes
import os
import sys

PR_SET_CHILD_SUBREAPER = 36


def main():
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    command = os.fork()
    if command == 0:
        os.execvp(sys.argv[1], sys.argv[1:])
    while True:
        process, status = os.wait()
        if process == command:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


if __name__ == '__main__':
    sys.exit(main())
