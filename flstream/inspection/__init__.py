"""Inspection of checkpoints of any size, range by range: contents, statistics, differences."""
