"""Sweeps: a grid of runs in one folder, in warm processes, resumable, and their table."""
