"""Engines that start workers: the fork server of this machine, or a Ray cluster."""
