"""A run from end to end: launcher, main functions of processes, and forecast."""
