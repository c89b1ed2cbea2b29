"""The workflows that come with flstream."""

from types import MappingProxyType

BUILT_IN = MappingProxyType(
    {
        "fedavg": "flstream.workflows.fedavg:fedavg",
        "cyclic": "flstream.workflows.cyclic:cyclic",
        "scaffold": "flstream.workflows.scaffold:scaffold",
        "cross_site": "flstream.workflows.cross_site:cross_site",
        "evaluate": "flstream.workflows.evaluate:evaluate",
        "swarm": "flstream.workflows.swarm:swarm",
        "diloco": "flstream.workflows.diloco:diloco",
        "decoupled_diloco": "flstream.workflows.decoupled_diloco:decoupled_diloco",
        "ditto": "flstream.workflows.ditto:ditto",
        "feddyn": "flstream.workflows.feddyn:feddyn",
        "fedper": "flstream.workflows.fedper:fedper",
        "fedex": "flstream.workflows.fedex:fedex",
        "hlora": "flstream.workflows.hlora:hlora",
        "flora": "flstream.workflows.flora:flora",
        "fedbuff": "flstream.workflows.fedbuff:fedbuff",
        "fedasync": "flstream.workflows.fedasync:fedasync",
    }
)
"""The dotted name of each by the name that a job file gives it. A new one is a file and a line."""
