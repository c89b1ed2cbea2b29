"""Rounds: tasks given out, updates taken in and folded, whatever becomes of a site."""
