"""What training code imports from libraries is imported once, before its processes are forked."""

import importlib
import json
import os
import socket
import subprocess
import sys

import pytest

from flstream.engines.preload import (
    FORK_SAFE,
    import_libraries,
    library_imports,
    preloaded_imports,
)
from flstream.engines.processes import QUIET_ARROW

DYNAMO = ("torch._dynamo", [])


@pytest.fixture
def imports_of(tmp_path):
    """What is found for a script, with other files beside it."""

    def find(script, beside=()):
        for name, text in {"client.py": script, **dict(beside)}.items():
            path = tmp_path / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        return library_imports(tmp_path / "client.py")

    return find


HEAD = 'import os\nos.environ["SCIPY_ARRAY_API"] = "1"\n'


@pytest.mark.parametrize(
    ("script", "found"),
    [
        (
            "import numpy as np, scipy.stats\nfrom sklearn import datasets, svm as s",
            [("numpy", []), ("scipy.stats", []), ("sklearn", ["datasets", "svm"])],
        ),
        ("import os, torch, flstream.client, wandb\ndef late():\n    import scipy", []),
        ("from . import numpy\nfrom .scipy import stats", []),
        ("import torch\nstep = torch.optim.SGD", [DYNAMO]),
        ("import numpy\n" + HEAD + "import scipy", [("numpy", [])]),  # left to the script
        ("import scipy\nthis is no Python", []),
        ("import scipy\0", []),
    ],
)
def test_imports_of_known_libraries_at_the_top_of_a_script_are_found(
    imports_of, tmp_path, script, found
):
    assert imports_of(script) == found
    assert library_imports(tmp_path / "none.py") == []


def test_what_the_script_imports_from_beside_itself_is_looked_through(imports_of):
    found = imports_of(
        "import model\nimport pandas\nfrom parts import net",
        {
            "model.py": "import client\nfrom scipy import stats",
            "pandas.py": "",  # comes before the library
            "unused.py": "import PIL",
            "parts/__init__.py": "",
            "parts/net.py": "from torch.optim import Adam",
        },
    )
    assert found == [("scipy", ["stats"]), DYNAMO]


def test_what_fails_to_import_leaves_nothing_half_imported(tmp_path, monkeypatch):
    package = tmp_path / "brittle"
    package.mkdir()
    (package / "__init__.py").write_text("import brittle.sound\nimport brittle.cracked")
    (package / "sound.py").write_text("")
    (package / "cracked.py").write_text("raise ValueError('it broke')")
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    import_libraries([("brittle", []), ("nowhere.to_be", ["found"])])
    assert set(sys.modules) == before
    with pytest.raises(ValueError, match="it broke"):
        importlib.import_module("brittle")


# Prints what importing the libraries does to a process beside filling its memory.
OBSERVE = """
import json, os, sys, torch
from flstream.engines.preload import import_libraries
count = lambda: [len(os.listdir(f"/proc/self/{folder}")) for folder in ("task", "fd")]
before = count()
import_libraries(json.loads(sys.argv[1]))
print(before == count(), "sklearn.linear_model" in sys.modules)
"""


@pytest.mark.nightly
def test_a_process_may_fork_after_importing_what_is_said_to_be_safe():
    pytest.importorskip("sklearn")
    modules = [*sorted(FORK_SAFE), "PIL.Image", "scipy.linalg", "sklearn.linear_model"]
    done = subprocess.run(
        [sys.executable, "-c", OBSERVE, json.dumps([[module, []] for module in modules])],
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **QUIET_ARROW},
        capture_output=True,
        text=True,
        check=True,
    )
    # No more threads and open files than before, and not a word.
    assert (done.stdout, done.stderr) == ("True True\n", "")


# Prints, when NumPy is about to be imported, whether the job's variables are there.
WATCH_FOR_NUMPY = """
import os, sys

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "numpy":
            threads = os.environ.get("OPENBLAS_NUM_THREADS")
            print(threads, "flstream.job" in sys.modules, flush=True)
            os._exit(0)

sys.meta_path.insert(0, Watch())
from flstream.engines.preload import main
main(int(sys.argv[1]))
"""


@pytest.mark.parametrize(
    ("variables", "printed"), [(b'{"OPENBLAS_NUM_THREADS": "3"}', "3 True\n"), (b"", "")]
)
def test_the_fork_server_heeds_the_job_before_it_imports_what_looks_at_it(variables, printed):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-c", WATCH_FOR_NUMPY, str(theirs.fileno())],
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
                pass_fds=[theirs.fileno()],
                stdout=subprocess.PIPE,
                text=True,
            )
        if variables:
            ours.send(variables)
        else:
            ours.shutdown(socket.SHUT_WR)  # the launcher is gone, and said nothing
        assert process.communicate(timeout=60) == (printed, None)


def test_what_is_imported_anywhere_from_libraries_that_a_job_names_is_found(tmp_path):
    (tmp_path / "client.py").write_text(
        "import trl.trainer\nimport model, other\n"
        "def late():\n    from trl import SFTTrainer, SFTConfig"
    )
    (tmp_path / "model.py").write_text("from transformers import AutoModel\nimport trlx")
    (tmp_path / "other.py").write_text("no Python")
    assert preloaded_imports(tmp_path / "client.py", ["trl", "transformers"]) == [
        ("trl", []),
        ("transformers", []),
        ("trl.trainer", []),
        ("trl", ["SFTTrainer", "SFTConfig"]),
        ("transformers", ["AutoModel"]),
    ]
    assert preloaded_imports(tmp_path / "client.py", []) == []
    assert preloaded_imports(None, ["trl"]) == [("trl", [])]


LIBRARY = """
import os, threading
made_by = os.getpid()
if {starts}:
    threading.Thread(target=threading.Event().wait, daemon=True).start()
"""
SAYS_WHERE = """
import library
import os
import flstream.client as flare

flare.init()
while flare.is_running():
    model = flare.receive()
    flare.log("shared", int(library.made_by != os.getpid()))
    flare.send(flare.FLModel(params=model.params))
"""


@pytest.mark.nightly
@pytest.mark.parametrize("starts", [False, True])
def test_a_job_may_name_libraries_that_are_imported_once_but_start_no_threads(
    jobs_of_their_own, tmp_path, monkeypatch, starts
):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "library.py").write_text(LIBRARY.format(starts=starts))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    run = jobs_of_their_own.run(SAYS_WHERE, "train.preload=[library]", "rounds=1")
    if starts:
        assert "train.preload: the import of library starts threads" in run.summary.error
        return
    assert run.summary.status == "finished", run.summary.error
    events = [json.loads(line) for line in run.directory.events.read_bytes().splitlines()]
    assert [each["value"] for each in events if each.get("key") == "shared"] == [1, 1]
