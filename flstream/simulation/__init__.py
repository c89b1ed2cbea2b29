"""A run from end to end: its launcher, the main functions of its processes, and its forecast."""
