"""A receiver that reads late gets what was offered, and nothing that came to lie there since."""

import numpy as np
import pytest
from liars import greeting
from stranger import exactly, message, read_packet

from flstream.streaming.api import add_arrays

MIB = 1 << 20


@pytest.mark.parametrize("lends", [True, False], ids=["trusted", "not trusted"])
@pytest.mark.parametrize("how", ["abort", "quorum", "closed", "detached"])
def test_memory_that_was_lent_is_not_read_once_the_offer_has_settled(harness, how, lends):
    array = np.full(8 * MIB, 1, np.uint8)
    ref = add_arrays(harness.service, {"a": array}, ["site-1", "site-2"], quorum=1)
    sock = harness.socket("site-1", lends=lends)
    fields = {"start": 0, "stop": 8 * MIB, "chunk_size": MIB, "urgent": False}
    asked = message("Fetch", 1, ref.token, token=ref.token, request=1, **fields)
    sock.sendall(greeting() + asked)
    sock.settimeout(30)
    read_packet(lambda count: exactly(sock, count), MIB)
    data = bytearray(exactly(sock, 70 << 10))  # so that the first frame is on its way
    match how:
        case "abort":
            ref.abort("no more")
        case "quorum":
            ref.receiver_done("site-2", None)
        case "closed":
            harness.service.close()
        case "detached":
            harness.service.detach("site-1")
            ref.receiver_done("site-2", "it goes, too")
    assert ref.wait(10).status != "waiting"
    # Its owner may use the memory for whatever it likes from here on.
    array[:] = 0xEE
    sock.settimeout(0.3)  # there is no more, or there is the end
    try:
        while piece := sock.recv(MIB):
            data += piece
    except TimeoutError:
        pass
    assert bytes([0xEE]) * 64 not in data
