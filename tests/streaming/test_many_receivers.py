"""Many receivers at once, on one thread of the service, and the shape of OpenFL's example."""

import threading

import numpy as np
from harness import open_harness

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
