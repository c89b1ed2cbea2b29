"""The bench: the exchange job run with other settings side by side, and measured."""
