"""Events of a run, and memory samples of its processes, for every other room."""
