"""Engines, which start workers: the fork server of this machine and the sockets to its workers."""
