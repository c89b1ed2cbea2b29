"""The bench: the exchange job run in each transfer mode, measured side by side."""
