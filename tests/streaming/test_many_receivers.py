"""Many receivers at once, on one thread of the service, and the shape of OpenFL's example."""

import threading
from math import ceil

import numpy as np
import pytest
from harness import open_harness

from flstream.model.memory import MemoryBody
from flstream.streaming.api import add_arrays, download_arrays
from flstream.streaming.receiver import StreamSettings

MODEL = {f"layer.{i}": np.full(20_000, i, np.float32) for i in range(20)}
NBYTES = sum(array.nbytes for array in MODEL.values())


def all_at_once(jobs):
    threads = [threading.Thread(target=job, daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def test_sixty_four_receivers_are_served_at_once_on_one_thread():
    names = [f"site-{number}" for number in range(64)]
    with open_harness() as harness:
        before = threading.active_count()
        receivers = {name: harness.receiver(name) for name in names}
        ref = add_arrays(harness.service, MODEL, names)
        statuses = {}

        def job(name):
            def run():
                settings = StreamSettings(chunk_size=65536, request_timeout=30)
                status, arrays = download_arrays(receivers[name], ref.token, settings=settings)
                statuses[name] = status.ok and all(
                    np.array_equal(arrays[each], MODEL[each]) for each in MODEL
                )

            return run

        assert threading.active_count() == before
        all_at_once([job(name) for name in names])
        assert statuses == dict.fromkeys(names, True)
        assert ref.wait(10).ok
        assert all(each.bytes == NBYTES for each in ref.deliveries.values())


@pytest.mark.parametrize(("request_size", "requests"), [(64 << 20, 8), (1 << 20, 8 * 62)])
def test_the_histology_shape_takes_a_request_a_receiver(request_size, requests):
    # OpenFL's pull request 1575: 20 tensors of 64 MB in all to 8 collaborators took 160 calls a
    # round, one for each tensor and collaborator. Here a request is a range of bytes.
    names = [f"site-{number}" for number in range(8)]
    model = {f"layer.{i}": np.zeros(800_000, np.float32) for i in range(20)}
    nbytes = MemoryBody.of(model).layout.nbytes
    assert nbytes == 64_000_000
    assert requests == 8 * ceil(nbytes / request_size)
    with open_harness() as harness:
        receivers = [harness.receiver(name) for name in names]
        ref = add_arrays(harness.service, model, names)
        settings = StreamSettings(request_size=request_size, request_timeout=60)
        for receiver in receivers:
            status, _ = download_arrays(receiver, ref.token, settings=settings)
            assert status.ok
        assert sum(each.requests for each in ref.deliveries.values()) == requests
