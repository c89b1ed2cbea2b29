"""The run directory: what lies in it, what a run that goes on finds there, and what stays."""
