"""The program: ``flstream``, or ``python -m flstream``."""

from __future__ import annotations

import io
import sys

from flstream.cli.app import app
from flstream.cli.status import FAILED, WRONG
from flstream.errors import FlstreamError, UsageError


def main() -> None:
    """Run the command line, and end the process with the status it calls for."""
    for stream in (sys.stdout, sys.stderr):
        # A name that the terminal's encoding lacks is shown escaped, not answered with a traceback.
        if isinstance(stream, io.TextIOWrapper):  # closed, it is None
            stream.reconfigure(errors="backslashreplace")
    try:
        app(prog_name="flstream")
    except FlstreamError as error:
        from flstream.report.console import report_error

        report_error(str(error))
        sys.exit(WRONG if isinstance(error, UsageError) else FAILED)


if __name__ == "__main__":
    main()
