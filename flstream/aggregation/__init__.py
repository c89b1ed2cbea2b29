"""Aggregation: the same range of every update is folded into that range of the next model."""
