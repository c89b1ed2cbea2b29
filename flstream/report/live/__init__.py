"""Progress of a run: a live view on a terminal, a log of lines anywhere else."""
