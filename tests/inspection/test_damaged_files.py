"""Whatever is wrong with a file, the answer is one sentence: no traceback, no wait, no memory."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import damaged
import pytest
import torch

from flstream.errors import FlstreamError
from flstream.inspection.examine import Request, examine

# The command line, once a file, in one process: what it prints and ends with, and its memory.
PROGRAM = """
import contextlib, io, json, resource, signal, sys
import torch
from flstream.__main__ import main

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

def ask(path):
    out, err, status = io.StringIO(), io.StringIO(), 0
    sys.argv = ["flstream", "inspect", path, "--stats", "--verify"]
    signal.alarm(60)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            status = end.code
    signal.alarm(0)
    return status, out.getvalue(), err.getvalue()

first, *paths = json.load(sys.stdin)
assert ask(first)[0] == 0
idle = peak()
answers = [[path, *ask(path)] for path in paths]
print(json.dumps({"answers": answers, "grown": peak() - idle}))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("damaged")


def ask(folder: Path, paths: list[Path], program: str = PROGRAM) -> dict[str, Any]:
    sound = folder / "sound.pt"
    torch.save({"a": torch.zeros(4)}, sound)
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps([str(path) for path in (sound.relative_to(folder), *paths)]),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.nightly
def test_every_damaged_file_has_a_sentence_of_its_own(folder: Path) -> None:
    corpus = damaged.write_corpus(folder)
    answered = ask(folder, list(corpus.values()))
    answers = answered["answers"]
    sentences: dict[str, str] = {}
    for flaw, (path, status, out, err) in zip(corpus, answers, strict=True):
        assert (status, out) == (2, ""), (flaw, err)
        lines = err.splitlines()
        assert len(lines) == 1, (flaw, err)
        # A flaw of a shard or a journal is told of that file, which lies beside or below.
        place = str(Path(path).parent)
        assert lines[0].startswith("error: ")
        assert place in lines[0], (flaw, err)
        assert "; " in lines[0], (flaw, "no next step", err)
        assert len(lines[0]) < 1500, flaw
        sentences[flaw] = lines[0].replace(place, "").removeprefix("error: ")
    shared = [s for s, count in Counter(sentences.values()).items() if count > 1]
    assert {flaw: s for flaw, s in sentences.items() if s in shared} == {}
    assert len(corpus) >= 40
    assert not list(folder.rglob("*.ran"))  # no code ran
    assert answered["grown"] < 64 << 20


def test_a_file_cut_or_changed_anywhere_is_refused_or_harmless(tmp_path: Path) -> None:
    random = Random(0)
    writers = {
        "x.safetensors": lambda path: path.write_bytes(damaged.SOUND),
        "x.pt": damaged.saved(damaged.two),
        "x.npz": damaged.npz(a=damaged.MARKED, deflate=True),
    }
    sentences = []
    for name, write in writers.items():
        write(tmp_path / name)
        sound = (tmp_path / name).read_bytes()
        for size in range(0, len(sound), max(1, len(sound) // 40)):
            (tmp_path / name).write_bytes(sound[:size])
            with pytest.raises(FlstreamError, match=name):
                examine(Request(tmp_path / name, stats=True, verify=True))
        for _ in range(200):
            data = bytearray(sound)
            for _ in range(random.choice([1, 1, 3])):
                data[random.randrange(len(data))] = random.choice([0, 255, random.randrange(256)])
            (tmp_path / name).write_bytes(data)
            try:
                examine(Request(tmp_path / name, stats=True, verify=random.random() < 0.5))
            except FlstreamError as error:
                sentences.append(str(error))
    assert len(sentences) > 300
    assert all(str(tmp_path) in sentence for sentence in sentences)


@pytest.mark.skipif(not hasattr(os, "seteuid"), reason="needs users")
def test_a_file_of_another_user_is_one_sentence(folder: Path) -> None:
    forbidden = folder / "forbidden"
    forbidden.mkdir()
    (forbidden / "x.safetensors").write_bytes(damaged.SOUND)
    (forbidden / "x.safetensors").chmod(0)
    # Root reads everything; but who is in a folder already needs no right to the way there.
    program = PROGRAM.replace("idle = peak()", "idle = os.geteuid() or os.seteuid(65534) or 0")
    program = program.replace("import contextlib,", "import os, contextlib,")
    [(_, status, out, err)] = ask(forbidden, [Path("x.safetensors")], program)["answers"]
    assert (status, out) == (2, "")
    assert err == (
        "error: x.safetensors cannot be read: Permission denied; "
        "check the path and its permissions\n"
    )
