"""The run directory: layout, journal, summary, and the point to resume from."""
