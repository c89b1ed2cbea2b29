"""A run while it goes on: live on a terminal, line by line anywhere else."""
