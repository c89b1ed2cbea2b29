"""Channels: carriers of packets between two processes."""
