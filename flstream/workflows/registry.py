"""The workflows that come with flstream."""

from types import MappingProxyType

BUILT_IN = MappingProxyType(
    {
        "fedavg": "flstream.workflows.fedavg:fedavg",
        "cyclic": "flstream.workflows.cyclic:cyclic",
        "ditto": "flstream.workflows.ditto:ditto",
        "feddyn": "flstream.workflows.feddyn:feddyn",
        "fedper": "flstream.workflows.fedper:fedper",
    }
)
"""The dotted name of each by the name that a job file gives it. A new one is a file and a line."""
