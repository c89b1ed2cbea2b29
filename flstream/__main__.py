"""The program: ``flstream``, or ``python -m flstream``."""

from __future__ import annotations

import signal
import sys


def main() -> None:
    """Run the command line, and end the process with the status it calls for."""
    # While this imports, Ctrl-C ends it at once, without a traceback. One that is ignored, as of a
    # shell's background job, stays so.
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from flstream.cli.output import open_output
    from flstream.cli.run import interrupt, run

    output = open_output()
    is_default = handler is signal.default_int_handler
    signal.signal(signal.SIGINT, interrupt if is_default else handler)
    status = run(output)
    # Where Ctrl-C came in code that a library had as text, `python -m` ends by the signal whatever
    # the status is, unless other such code has ended well since.
    exec("")
    sys.exit(status)


if __name__ == "__main__":
    main()
