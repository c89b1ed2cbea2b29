"""A lock has one holder, and those who wait for it get it or give up."""

import fcntl
import threading
from concurrent.futures import ThreadPoolExecutor

from flstream.telemetry.locks import lock_file


def test_a_lock_has_one_holder_until_its_file_is_closed(tmp_path):
    path = tmp_path / "file"
    with path.open("ab") as first, path.open("ab") as second:
        assert lock_file(first.fileno())
        assert not lock_file(second.fileno())
        assert not lock_file(second.fileno(), patience=0.01)
        first.close()
        assert lock_file(second.fileno())


def test_whoever_waits_gets_the_lock_when_it_is_free(tmp_path, monkeypatch):
    path = tmp_path / "file"
    flock, waits = fcntl.flock, threading.Event()

    def noted(fd: int, operation: int) -> None:
        if not operation & fcntl.LOCK_NB:
            waits.set()
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", noted)
    with path.open("ab") as first, path.open("ab") as second, path.open("ab") as third:
        assert lock_file(first.fileno())
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(lock_file, second.fileno(), 60.0)
            assert waits.wait(60)
            first.close()
            assert waiting.result(60)
        # It holds though the thread that waited for it has ended.
        assert not lock_file(third.fileno())
