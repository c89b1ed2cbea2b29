"""Imports of code that a job names, in processes with threads."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType

from flstream.job.code import import_once

SLOW = """
import gates

gates.begun.set()
gates.opened.wait(30)
value = 1
"""


def test_a_module_that_another_thread_is_importing_is_waited_for(tmp_path, monkeypatch):
    (tmp_path / "slowly_made.py").write_text(SLOW)
    gates = ModuleType("gates")
    gates.begun, gates.opened = threading.Event(), threading.Event()
    monkeypatch.setitem(sys.modules, "gates", gates)
    monkeypatch.syspath_prepend(tmp_path)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(lambda: import_once("slowly_made").value)
        assert gates.begun.wait(30)
        second = threads.submit(lambda: import_once("slowly_made").value)
        threading.Timer(0.05, gates.opened.set).start()
        assert (first.result(30), second.result(30)) == (1, 1)
    monkeypatch.delitem(sys.modules, "slowly_made")
