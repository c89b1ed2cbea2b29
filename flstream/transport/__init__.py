"""Channels: what carries packets between two processes."""
