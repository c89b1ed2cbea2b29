"""Trackers: further destinations of a run's numbers and text, fed by its journal."""
