"""The imports of a fork server whose processes need no torch, in place of ``preload``."""

import json
import os
import resource
import socket

from flstream.engines.fork_server import serve


def main(fd: int) -> None:
    """Fork processes at the launcher's request."""
    with socket.socket(fileno=fd) as launcher:
        variables = launcher.recv(1 << 20)
        if variables:
            os.environ.update(json.loads(variables))
            _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
            serve(launcher)
