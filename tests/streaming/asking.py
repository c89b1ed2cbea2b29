"""Requests made one by one, without a download around them, and what the service says."""

from collections.abc import Callable

from harness import Harness, fetch
from support import assert_same_tensors, tensor

from flstream.model.memory import MemoryBody
from flstream.streaming.receiver import Receiver
from flstream.streaming.refs import Ref
from flstream.streaming.wire import MESSAGE, Refused, Reply, Request, decode_reply

MODEL = {"w": tensor("F32", (300, 100)), "b": tensor("F16", (5,))}
NBYTES = 120_010


def offer(harness: Harness, *receivers: str) -> Ref:
    return harness.service.offer(MemoryBody.of(MODEL), receivers or ["site-1"])


def assert_serves(harness: Harness, name: str = "site-9") -> None:
    """The service is alive, and has a model for whoever it is for."""
    ref = offer(harness, name)
    assert_same_tensors(fetch(harness.receiver(name), ref.token).tensors, MODEL)


def waits_for(receiver: Receiver) -> Callable[[], bool]:
    """Waits for the service, which is to say something."""

    def wait() -> bool:
        assert receiver.wait(10), "the service says nothing"
        return True

    return wait


def reply_to(receiver: Receiver, number: int) -> Reply:
    """The service's message about a request, past all that comes before it."""
    wait = waits_for(receiver)
    while True:
        header = receiver.packets.header(wait)
        payload = bytearray(header.length)
        assert receiver.packets.payload([memoryview(payload)], wait)
        if header.kind == MESSAGE and header.request == number:
            return decode_reply(bytes(payload), "server")


def ask(receiver: Receiver, request: Request) -> Reply:
    """Send a request, and get the service's message about it."""
    receiver.send(request, 10)
    return reply_to(receiver, request.request)


def refusal(receiver: Receiver, request: Request) -> str:
    """The reason that the service gives for not answering a request."""
    refused = ask(receiver, request)
    assert isinstance(refused, Refused)
    return refused.reason
