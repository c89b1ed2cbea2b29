"""Checkpoints as they come: each format is a source whose tensors are read range by range."""
