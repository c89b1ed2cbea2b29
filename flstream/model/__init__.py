"""A model as a byte range: layout, sources, sinks and checkpoints."""
