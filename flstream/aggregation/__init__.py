"""Aggregation: a walk folds each range of all updates into the next model's range."""
