"""Events of a run, and samples of the memory of its processes. Every other room may use it."""
