"""Run a `shardtool` command in a process of the server of `tests.warm`, and exit with its exit code.

    python -IS warm_client.py FD WORD...

runs `shardtool WORD...`. FD is the inherited socket of the server. This script imports little, so it starts in 20 ms.
"""

import marshal
import os
import socket
import sys

status, end = os.pipe()
request = marshal.dumps((sys.argv[2:], "", os.getcwd(), dict(os.environ), False))
socket.send_fds(socket.socket(fileno=int(sys.argv[1])), [request], [0, 1, 2, end])
os.close(end)
os.read(status, 4)
ended = os.read(status, 4)
sys.exit(int.from_bytes(ended, sys.byteorder, signed=True) & 0xFF if ended else "the server of `tests.warm` has exited")
