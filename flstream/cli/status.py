"""Exit statuses of the command line, a stable contract for scripts."""

DONE = 0
"""Exit status of a command that succeeded."""
FAILED = 1
"""Exit status of a job that failed."""
WRONG = 2
"""Exit status of a request with invalid input, such as a mistake in the job file."""
STOPPED = 130
"""Exit status after Ctrl-C, as a shell reports it."""
