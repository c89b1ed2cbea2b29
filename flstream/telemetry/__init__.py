"""Events of a run, and memory samples of its processes, for every other room."""

MEMORY_GROUP = "FLSTREAM_MEMORY_GROUP"
"""Environment variable of a run's processes with a memory limit: see ``memory_limit.py``."""
