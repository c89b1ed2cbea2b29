"""The trackers that come with flstream."""

from types import MappingProxyType
from typing import NamedTuple


class BuiltInTracker(NamedTuple):
    """A tracker that comes with flstream.

    Attributes:
        place: Dotted name of its class.
        module: Module that it needs, and flstream does not.
        install: Command that installs that.
    """

    place: str
    module: str
    install: str


BUILT_IN = MappingProxyType(
    {
        "tensorboard": BuiltInTracker(
            "flstream.tracking.tensorboard:TensorBoard",
            "tensorboard",
            "pip install 'flstream[tracking]'",
        ),
        "mlflow": BuiltInTracker(
            "flstream.tracking.mlflow:MLflow", "mlflow", "pip install 'flstream[tracking]'"
        ),
    }
)
"""Each by the name that a job file gives it. A new one is a file, and an entry here."""
