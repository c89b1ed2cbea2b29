"""A worker's memory for models: held back for the next one only while that is near."""

import weakref
from typing import Any

import numpy as np
import pytest
from serving import Serving, worker_info

from flstream.model.layout import Layout
from flstream.worker.worker import Worker

LARGE = Layout.of([("large", "F32", (1024, 1024))])


def after_an_answer(worker: Worker) -> weakref.ref[Any]:
    """Its memory, once a script has let go of a model that it had answered."""
    tensors = worker.memory.allocate(LARGE, "numpy").tensors
    alive = weakref.ref(tensors["large"].base.base.obj)
    worker.memory.keep()
    tensors.clear()
    assert alive() is not None
    return alive


@pytest.mark.parametrize("is_asked", [False, True])
def test_memory_is_kept_for_a_task_that_follows_at_once(tmp_path, monkeypatch, is_asked):
    if not is_asked:
        monkeypatch.setattr("flstream.worker.worker._SOON_SECONDS", 0.01)

    def serve(worker: Worker) -> None:
        alive = after_an_answer(worker)
        task = worker.next_task(timeout=None if is_asked else 0.02)
        assert (task is not None, alive() is not None) == (is_asked, is_asked)

    with Serving(worker_info(tmp_path, "site-1"), serve) as worker:
        if is_asked:
            worker.server.ask("train", {}, "site-1")
        worker.join()


def test_a_model_that_goes_elsewhere_needs_none(script):
    text = """
        import numpy as np, weakref
        import flstream.client as flare
        from flstream.client.session import current
        flare.init()
        first = flare.receive()
        memory = current().turns.worker.memory
        flare.send(flare.FLModel(params=first.params))
        model = flare.receive(into={"w": np.zeros((600, 600), np.float32)})
        kept = len(memory._kept)
        flare.send(flare.FLModel(params=model.params, metrics={"kept": kept}))
        """
    params = {"w": np.ones((600, 600), np.float32)}
    with script(text, site="site-1", exchange_format="numpy") as worker:
        worker.server.fetch(worker.server.train(params, "site-1"))
        answer = worker.server.train(params, "site-1", round_number=2)
        assert answer.sites[0].metrics == {"kept": 0}
        worker.server.fetch(answer)
