"""Inspection of checkpoints of any size, by ranges."""
