"""Trackers: where the numbers and text of a run go besides its own files, fed from its journal."""
