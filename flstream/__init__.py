"""Simulate federated learning on models larger than memory."""

from typing import Any

__version__ = "0.1.0"
__all__ = ["run"]


def __getattr__(name: str) -> Any:
    """Import :func:`flstream.recipe.run` once it is used, since the command line starts here."""
    if name != "run":
        raise AttributeError(f"module 'flstream' has no attribute {name!r}")
    from flstream.recipe import run

    return run
