"""Streamed and checked transfer of tensors, files and payloads between processes.

:mod:`flstream.streaming.api` has the functions, and an example; docs/streaming.md the rest.
"""

from flstream.model.layout import Layout as Layout
from flstream.model.source import Source as Source
from flstream.streaming.api import Status as Status
from flstream.streaming.api import add_arrays as add_arrays
from flstream.streaming.api import add_blob as add_blob
from flstream.streaming.api import add_file as add_file
from flstream.streaming.api import add_payload as add_payload
from flstream.streaming.api import add_tensors as add_tensors
from flstream.streaming.api import connect as connect
from flstream.streaming.api import download_arrays as download_arrays
from flstream.streaming.api import download_blob as download_blob
from flstream.streaming.api import download_file as download_file
from flstream.streaming.api import download_payload as download_payload
from flstream.streaming.api import download_specs as download_specs
from flstream.streaming.api import download_tensors as download_tensors
from flstream.streaming.api import listen as listen
from flstream.streaming.payload import Decomposer as Decomposer
from flstream.streaming.payload import Registry as Registry
from flstream.streaming.payload import default_registry as default_registry
from flstream.streaming.receiver import Receiver as Receiver
from flstream.streaming.refs import Outcome as Outcome
from flstream.streaming.refs import Ref as Ref
from flstream.streaming.selection import TensorSpec as TensorSpec
from flstream.streaming.service import DownloadService as DownloadService
from flstream.streaming.settings import Limits as Limits
from flstream.streaming.settings import StreamSettings as StreamSettings
from flstream.transport.channel import Channel as Channel
from flstream.transport.channel import Signal as Signal
from flstream.transport.channel import pipe as pipe
from flstream.transport.tcp import StartToken as StartToken
from flstream.transport.tcp import TcpListener as TcpListener
