"""Simulate federated learning on models larger than memory."""

__version__ = "0.1.0"
