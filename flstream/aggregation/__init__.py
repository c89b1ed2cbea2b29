"""Aggregation: folding the same range of every update into that range of the next model."""
