"""A site's command: its processes take part in tasks, and none is left however they end."""

from __future__ import annotations

import shlex
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import torch
from nightly_cases import first_and_nightly
from serving import Server, write

from flstream.engines.fork_server import temporary_prefix
from flstream.engines.processes import ProcessHost
from flstream.errors import ChannelClosedError, SimulationError
from flstream.runs.run_directory import RunDirectory
from flstream.simulation.command import _listener
from flstream.worker.messages import Failed, Logged, Ready, Stop

PYTHON = sys.executable
Start = Callable[..., Server]
MODEL = {"w": torch.zeros(4)}
# Starts two ranks, and ends one where the other has failed, as torchrun does. They are forked: to
# import torch twice takes longer than all else.
PAIR = """
import os, runpy, sys
import torch.distributed

def start(rank):
    if pid := os.fork():
        return pid
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2"}
    del sys.argv[0]
    sys.path[0] = os.path.dirname(sys.argv[0])
    runpy.run_path(sys.argv[0], run_name="__main__")
    sys.exit()

started = {start(rank) for rank in range(2)}
while started:
    pid, status = os.wait()
    started.remove(pid)
    if status:
        [os.kill(each, 9) for each in started]
        sys.exit(1)
"""
# Notes each process by its pid, and lets a rank do something when it has a task.
HEAD = """
import os, signal, sys, threading
from pathlib import Path
import psutil
import flstream.client as flare

rank, drawn = int(os.environ.get("RANK", 0)), []
Path(__file__).with_name(f"pid-{os.getpid()}").touch()
flare.init(rank)

def wait():
    threading.Event().wait()

def kill(pid):
    os.kill(pid, signal.SIGKILL)

"""
LOOP = """
while flare.is_running():
    model = flare.receive()
{body}
    if rank == 0:
        flare.send(flare.FLModel(model.params))
"""


def looping(body: str = "") -> str:
    return HEAD + LOOP.format(body=textwrap.indent(textwrap.dedent(body), "    "))


@pytest.fixture(autouse=True)
def _nothing_is_left(host: ProcessHost, run: RunDirectory, tmp_path: Path) -> Iterator[None]:
    before = folders(host)
    yield
    pids = [int(path.name.removeprefix("pid-")) for path in tmp_path.glob("pid-*")]
    processes = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    assert psutil.wait_procs(processes, timeout=20)[1] == []
    # One that is killed leaves its folder to the fork server.
    if all(process.exit_code() == 0 for process in host._processes):
        assert folders(host) == before


@pytest.fixture
def start(start_worker: Start, tmp_path: Path) -> Start:
    """Start the worker's process of a site."""

    def start(text: str, *command: str | Path, args: str = "") -> Server:
        script, words = str(write(tmp_path, text)), shlex.join(map(str, command))
        return start_worker("site-1", script=script, args=args, command=words)

    return start


def folders(host: ProcessHost) -> set[Path]:
    """Folders of commands of a host's processes."""
    prefix = temporary_prefix(host.fork_server_pid or 0)
    return set(Path(tempfile.gettempdir()).glob(f"{prefix}*"))


@pytest.fixture
def pair(tmp_path: Path) -> list[str]:
    (tmp_path / "pair.py").write_text(PAIR)
    return [PYTHON, str(tmp_path / "pair.py")]


def reason(server: Server) -> str:
    """Why a site fails, after which its worker ends."""
    failed = server.hear(Failed)
    ends(server)
    return failed.reason


def ends(server: Server) -> None:
    """Wait for the worker's end, before which it reports nothing."""
    with pytest.raises(ChannelClosedError):
        server.hear(Failed)


def test_ranks_take_part_in_each_task_and_rank_0_answers(start, run, pair, tmp_path):
    server = start(
        looping("""
        # What is repeated is repeated in all ranks, whichever is faster.
        assert flare.receive() is model
        drawn.append(__import__("random").random())
        seen = f"{rank} {flare.get_task_name()} {model.current_round} {len(model.params)}"
        print(seen + "\\n", end="")
        assert flare.get_state_dir().name.startswith(("effect", "evaluate"))
        flare.log("loss", rank)
        if flare.is_evaluate() and rank == 0:
            flare.send(flare.FLModel(metrics={"x": 1}))
            continue
        """)
        + "print(f'over {sys.argv[1:]} {sys.path[0]} {os.getcwd()} {drawn}\\n', end='')\n",
        *pair,
        args="--lr '0.1 x'",
    )
    ready = server.hear(Ready)
    assert len(ready.others) >= 2  # the worker's process, the command, and perhaps rank 1
    for number in (1, 2):
        trained = server.train(MODEL, "site-1", round_number=number)
        assert [each for each in server.heard if isinstance(each, Logged)] == [
            Logged(number, "site-1", "loss", 0.0)
        ]
        server.fetch(trained)
        server.evaluate(MODEL, "site-1", round_number=number)
    server.control.send(Stop())
    assert server.hear(Stop).peak_rss > 0
    ends(server)
    *lines, first, second = sorted(run.site_log("site-1").read_text().splitlines())
    assert first == second  # also the numbers that were drawn
    assert first.startswith(f"over ['--lr', '0.1 x'] {tmp_path} {run.site('site-1')}/work [0.")
    each = [f"{kind} {number}" for number in (0, 1) for kind in ("train", "evaluate")]
    assert lines == sorted(f"{rank} {it} {1 - rank}" for rank in (0, 1) for it in each)


def test_one_process_of_a_command_needs_no_launcher(start, run):
    server = start(
        looping("print(sorted(n for n in os.environ if n.startswith('FLSTREAM_C')))"), PYTHON
    )
    ready = server.hear(Ready)
    assert psutil.Process(ready.pid).cmdline()[0] == PYTHON
    server.fetch(server.train(MODEL, "site-1"))
    assert run.site_log("site-1").read_text() == "[]\n"
    server.control.send(Stop())
    server.hear(Stop)


# What another rank sees of a failure is a broken connection, a moment later, as with torch.
LATER = """
if rank == 1:
    raise ValueError("ill")
own = psutil.Process()
psutil.wait_procs([each for each in own.parent().children() if each != own])
raise RuntimeError("connection closed")
"""


@first_and_nightly(
    ("body", "words"),
    [
        (
            "print('last words')\nkill(os.getpid()) if rank == 1 else wait()",
            "has ended before its script: python exited with status 1 (last words)",
        ),
        (
            "kill(os.getppid()) if rank == 0 else wait()\nwait()",
            "train.command has ended before its script: python was killed by SIGKILL",
        ),
        ("if rank == 0:\n    raise ValueError('ill')\nwait()", "line 21 raised ValueError: ill"),
        (LATER, "rank 1: client.py, line 22 raised ValueError: ill"),
        ("if rank == 1:\n    sys.exit(4)\nwait()", "rank 1: client.py exited with status 4"),
        ("if rank == 0:\n    break\nwait()", "client.py ended without answering the task"),
    ],
)
def test_a_rank_that_ends_in_a_task_fails_the_site_and_ends_all_others(start, pair, body, words):
    server = start(looping(body), *pair)
    server.hear(Ready)
    server.ask("train", MODEL, "site-1")
    assert words in reason(server)


@pytest.mark.nightly
def test_a_rank_that_dies_before_it_is_ready_may_be_started_again(start, pair):
    dies = "if rank:\n    os.kill(os.getpid(), signal.SIGKILL)\nflare.init"
    server = start(looping().replace("flare.init", dies), *pair)
    failed = server.hear(Failed)
    assert "python exited with status 1" in failed.reason
    assert failed.has_died


@first_and_nightly("who", ["server", "worker"])
def test_the_end_of_the_server_or_of_the_workers_process_is_that_of_all_others(start, pair, who):
    """The launcher too, which would wait for others for ever."""
    body = "kill(psutil.Process(os.getppid()).ppid()) if rank == 0 else None\nwait()"
    launcher = "Path(__file__).with_name(f'pid-{os.getppid()}').touch()\n"
    body = body if who == "worker" else "flare.log('here', 1)\nwait()"
    server = start(looping(launcher + body), *pair)
    server.hear(Ready)
    server.ask("train", MODEL, "site-1")
    if who == "worker":
        ends(server)
    else:
        server.hear(Logged)


BROKEN = object()
# A launcher that tells its two processes nothing.
TWICE = [PYTHON, "-c", PAIR.replace("range(2)", "(0, 0)")]


@first_and_nightly(
    ("command", "words"),
    [
        (
            [PYTHON, "-c", "import sys; print('out', flush=True); sys.exit('no such option')"],
            "it started the script: python exited with status 1 (no such option)",
        ),
        ([BROKEN], "broken cannot be started: No such file"),
        (TWICE, "two processes of train.command are rank 0; use a launcher that gives each its"),
    ],
    brief=2,
)
def test_a_command_that_comes_to_nothing_says_why(start, tmp_path, command, words):
    broken = tmp_path / "broken"
    broken.write_text("#!/nowhere/at/all\n")
    broken.chmod(0o755)
    command = [broken if word is BROKEN else word for word in command]
    assert words in reason(start(looping(), *command))


def test_a_temporary_folder_whose_path_is_too_long_for_a_socket_is_named(tmp_path):
    path = f"{tmp_path}/{'long' * 30}"
    with pytest.raises(SimulationError, match=f"at {path}: .* set TMPDIR"):
        _listener(path)
