"""NVFlare's names: ``flstream.compat.nvflare`` in the place of ``nvflare`` in an import.

``flstream simulate job.py`` lets a program import them as ``nvflare`` itself.
"""

from flstream.compat.nvflare.names import REASONS, job_names
from flstream.worker.alias import client_names, enter_names

enter_names(__name__, {**client_names(), **job_names()}, REASONS)

from flstream.recipe import FedJob as FedJob  # noqa: E402
from flstream.recipe import FilterType as FilterType  # noqa: E402
