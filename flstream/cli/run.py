"""A whole run of the program: the command, its errors, and the exit status."""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
from types import FrameType

from flstream.cli.app import app
from flstream.cli.options import DONE, FAILED, STOPPED, WRONG
from flstream.cli.output import StandardStream
from flstream.errors import FlstreamError, UsageError

# Set once Ctrl-C has interrupted the command.
_interrupted = threading.Event()


def run(output: StandardStream) -> int | str | None:
    """Run the command of this process's arguments, and return its exit status.

    Args:
        output: Standard output.
    """
    status: int | str | None = DONE
    try:
        try:
            app(prog_name="flstream")
        except SystemExit as ended:
            status = ended.code
        except FlstreamError as error:
            if _interrupted.is_set():
                raise
            _report(str(error))
            status = WRONG if isinstance(error, UsageError) else FAILED
        sys.stdout.flush()
        if output.error is not None:
            _report(f"what is printed cannot be written: {output.error.strerror}")
            if not output.is_spare:
                status = status or FAILED
    except KeyboardInterrupt:
        status = STOPPED
    except Exception as error:
        # Interrupted code may raise another error in place of Ctrl-C's, as pydantic does.
        if _interrupted.is_set():
            status = STOPPED
        elif isinstance(error, FileNotFoundError) and not _has_working_directory():
            _report("the working directory was removed; change to one that exists")
            status = WRONG
        else:
            raise
    return status


def _has_working_directory() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True


def interrupt(number: int, frame: FrameType | None) -> None:
    """Handle Ctrl-C as Python does, but lose none, and print nothing afterwards.

    What is raised in a destructor or a callback of the import system, Python prints and forgets;
    and objects that were half made when it came have destructors that fail.

    Args:
        number: The signal.
        frame: Stack frame that the signal interrupted.

    Raises:
        KeyboardInterrupt: Always, but where it comes again too early.
    """
    sys.unraisablehook = _come_again
    _interrupted.set()
    while frame is not None:
        if frame.f_code is _come_again.__code__:  # where it would be lost once more
            _send_again()
            return
        frame = frame.f_back
    signal.default_int_handler(number, None)


def _come_again(lost: sys.UnraisableHookArgs) -> None:
    if lost.exc_type is KeyboardInterrupt:
        _send_again()


def _send_again() -> None:
    """Send the signal once more in a moment, from a thread that nothing waits for."""

    def send() -> None:
        threading.Event().wait(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    _thread.start_new_thread(send, ())


def _report(message: str) -> None:
    # Its imports are left to where they are needed: help must come at once.
    from flstream.report.console import report_error

    report_error(message)
