"""The simulator: a server and its sites, each a process, and the run directory they fill."""
