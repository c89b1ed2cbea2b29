"""The trackers that come with flstream."""

from types import MappingProxyType

BUILT_IN = MappingProxyType(
    {
        "tensorboard": "flstream.tracking.tensorboard:TensorBoard",
        "mlflow": "flstream.tracking.mlflow:MLflow",
    }
)
"""Place of each by the name that a job file gives it, which is that of the library it needs."""
