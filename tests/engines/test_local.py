"""The engine of this machine: what it does while workers are still being started."""

from flstream.engines.gpus import GpuDealer
from flstream.engines.local import LocalEngine


class EndsWhileOthersStart:
    """A worker whose end is waited for while another one is started."""

    def __init__(self, workers):
        self.workers = workers
        self.was_awaited = False

    def exit_code(self, seconds):
        """Have another worker start meanwhile."""
        self.was_awaited = True
        self.workers[f"worker-{len(self.workers) + 1}"] = None


def test_a_start_under_way_does_not_disturb_the_wait_for_the_others():
    engine = LocalEngine(None, "main", (), GpuDealer([], 1), lambda name, pid: None)
    worker = engine._workers["worker-1"] = EndsWhileOthersStart(engine._workers)
    engine.close()
    assert worker.was_awaited
    assert len(engine._workers) == 2
