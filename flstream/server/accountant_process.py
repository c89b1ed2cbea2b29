"""The accountant's process, which is started anew for each question and ends with its answer."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

import flstream
from flstream.aggregation import accountant
from flstream.aggregation.accountant import EpsilonRequest
from flstream.errors import SimulationError

_SECONDS = 600.0


class AccountantProcess:
    """Has epsilons computed in a process of its own, so that the server stays small.

    What that process prints goes where this one's output goes.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._request: EpsilonRequest | None = None

    def begin(self, request: EpsilonRequest) -> None:
        """Start on a request, whose answer will most likely be asked for."""
        self.close()
        folder = str(Path(flstream.__file__).parents[1])
        paths = [folder, *filter(None, [os.environ.get("PYTHONPATH")])]
        process = subprocess.Popen(
            # Without the current folder among its paths, whose files are the user's.
            [sys.executable, "-P", "-m", accountant.__name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )
        self._process, self._request = process, request
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(request))
        process.stdin.close()
        process.stdin = None

    def __call__(self, request: EpsilonRequest) -> Sequence[float]:
        """Return the answer to a request.

        Raises:
            SimulationError: The process failed; its output says why.
        """
        if request != self._request:
            self.begin(request)
        assert self._process is not None
        process, self._process, self._request = self._process, None, None
        try:
            output, _ = process.communicate(timeout=_SECONDS)
        except subprocess.TimeoutExpired as error:
            process.kill()
            process.communicate()
            raise SimulationError(
                f"the accountant has not answered for {_SECONDS:g} s; take privacy.accountant = rdp"
            ) from error
        if process.returncode:
            raise SimulationError(
                "the accountant's process failed, and server.log has what it printed; check that "
                "the extra flstream[privacy] is installed"
            )
        return msgspec.json.decode(output, type=list[float])

    def close(self) -> None:
        """End a process whose answer is not needed any more."""
        process, self._process, self._request = self._process, None, None
        if process is not None:
            process.kill()
            process.communicate()
