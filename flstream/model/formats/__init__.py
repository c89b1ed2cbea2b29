"""Checkpoint formats: each is a source whose tensors are read range by range."""
