"""The forecast: what a job will need, and whether this machine has it."""
