"""Streamed and checked transfer of tensors, arrays, files and payloads between processes.

The names are those of NVFlare's guide to the Tensor Downloader. The sender offers a snapshot
through a download service, and sends the ref's id to the receivers by any means. Each receiver
downloads at its own pace::

    # the sender
    with DownloadService() as service, listen(service, "127.0.0.1:7707") as listener:
        key = listener.admit("site-1")
        ref = add_tensors(service, model.state_dict(), receivers=["site-1"])
        print(listener.address, key, ref.id)
        outcome = ref.wait()

    # the receiver
    with connect("127.0.0.1:7707", key) as receiver:
        status, state_dict = download_tensors(receiver, ref_id)

A payload is any nested structure with tensors in it, such as an ``FLModel``. It also takes a single
ref, and one call on each side::

    ref = add_payload(service, {"model": net.state_dict(), "round": 3}, receivers=["site-1"])
    status, value = download_payload(receiver, ref.id)
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
