"""The bench: the exchange job run in each mode side by side, measured as every run is."""
