"""A lock has one holder, and those who wait for it get it or give up."""

import time

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
    with path.open("ab") as first, path.open("ab") as second:
        assert lock_file(first.fileno())
        monkeypatch.setattr(time, "sleep", lambda seconds: first.close())
        assert lock_file(second.fileno(), 60.0)
