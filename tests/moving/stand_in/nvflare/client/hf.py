"""The patch, between plain processes."""

from flstream.client.hf import patch  # noqa: F401
from nvflare.client import *  # noqa: F403
from nvflare.client import patched  # noqa: F401
