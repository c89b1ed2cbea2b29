"""The exit statuses: a contract for scripts."""

DONE = 0
FAILED = 1
"""The job failed."""
WRONG = 2
"""What was asked for is wrong."""
STOPPED = 130
"""Ctrl-C, as a shell reports it."""
