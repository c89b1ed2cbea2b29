"""The forecast of a job's traffic, memory and disk, and whether they fit this machine."""
