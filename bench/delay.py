#!/usr/bin/env python3
"""delay.py SECONDS HOST COMMAND: replaces ssh, over a link with a delay of SECONDS in each direction.

Runs COMMAND here, with the environment in the file that DELAY_ENV names. If DELAY_OPEN is set, the connection already
exists, as with ssh's ControlMaster, and only the command must be sent. Bytes are passed on at full speed, but each only
after the delay.
"""
import collections
import json
import os
import subprocess
import sys
import threading
import time

PIECE, AHEAD = 1 << 18, 256     # bytes read at once; maximum number of pieces in flight


def carry(source, sink, delay):
    """Copies with a delay: one thread reads, this one writes each piece when its time has come."""
    queue, changed = collections.deque(), threading.Condition()

    def read():
        while True:
            piece = os.read(source, PIECE)
            with changed:
                changed.wait_for(lambda: len(queue) < AHEAD)
                queue.append((time.monotonic() + delay, piece))
                changed.notify_all()
            if not piece:
                return

    threading.Thread(target=read, daemon=True).start()
    while True:
        with changed:
            changed.wait_for(lambda: queue)
            due, piece = queue[0]
        time.sleep(max(0, due - time.monotonic()))
        with changed:
            queue.popleft()
            changed.notify_all()
        if not piece:
            os.close(sink)
            return
        view = memoryview(piece)
        try:
            while view:
                view = view[os.write(sink, view):]
        except BrokenPipeError:
            return


def main():
    delay, command = float(sys.argv[1]), sys.argv[-1]
    with open(os.environ['DELAY_ENV']) as f:
        env = json.load(f)
    if 'DELAY_OPEN' in os.environ:
        time.sleep(2 * delay)   # request and confirmation of a session
    else:
        time.sleep(6 * delay)   # handshakes of TCP and ssh before that
    child = subprocess.Popen(['sh', '-c', command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env,
                             cwd=env['HOME'])
    threading.Thread(target=carry, args=(0, child.stdin.fileno(), delay), daemon=True).start()
    carry(child.stdout.fileno(), 1, delay)
    sys.exit(child.wait())


if __name__ == '__main__':
    main()
