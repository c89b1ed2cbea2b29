"""Every fenced block of the README and the pages runs, loads or parses, and prints what is shown.

The blocks of a page run in order, in an empty folder of the page's own, where ``jobs/`` is a copy
of the repository's. A block whose first line is ``# name.ext`` is written to that file. A comment
above a fence says when the block runs: ``<!-- nightly -->``, ``<!-- extra -->`` (where the extras
are installed), or ``<!-- not run: why -->``. A comment ``<!--python ... -->`` is a block that is
not shown, and runs before the fence below it.
"""

import ast
import csv
import importlib
import json
import math
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from run_fixtures import share_host
from terminal import VARIABLES
from test_pages import PAGES, ROOT

from flstream.__main__ import main
from flstream.job import load_job
from flstream.job.hocon import read_hocon
from flstream.job.keys import leaves

BLOCK = re.compile(
    r"^(?:<!-- (?P<mark>[^\n]*) -->\n)?```(?P<language>\w*)\n(?P<text>.*?)^```$"
    r"|^<!--python\n(?P<hidden>.*?)^-->$",
    flags=re.MULTILINE | re.DOTALL,
)
NAMED = re.compile(r"# ([\w./-]+\.(?:py|conf|csv|toml|ini|txt|sh))\n")
COMMAND = re.compile(r"^\$ ((?:.*\\\n)*.*)\n((?:(?!\$ ).*\n)*)", flags=re.MULTILINE)
FAILED = re.compile(r"\[exit status (\d+)\]\n\Z")
# What only a shell understands, once all that stands in quotes is gone.
FOR_A_SHELL = re.compile(r"[|<>;&$*?~`]")
QUOTED = re.compile(r"'[^']*'|\"[^\"$`]*\"")
LANGUAGES = {"python", "hocon", "sh", "console", "json", "csv", "text"}
OTHERS = ("nvflare", "flwr")
# A small job, of which a block without a name is a part, and what takes the place of a part.
JOB = {
    "name = page, rounds = 2": (),
    "clients.count = 4": ("clients.count", "clients.names"),
    'model.factory = "model:Net"': ("model.factory", "model.initial"),
    "train.script = client.py": ("train.script", "train.learner"),
}


class Block(NamedTuple):
    mark: str
    language: str
    name: str
    text: str
    line: int


def blocks_of(page: str) -> Iterator[Block]:
    hidden: list[Block] = []  # those above the next fence, which run when it does
    for found in BLOCK.finditer(page):
        if found["hidden"] is not None:
            line = page.count("\n", 0, found.start("hidden"))
            hidden.append(Block("", "python", "", found["hidden"], line))
            continue
        line, text, mark = page.count("\n", 0, found.start("text")), found["text"], found["mark"]
        named = NAMED.match(text)
        name, text = (named[1], text[named.end() :]) if named else ("", text)
        yield from (each._replace(mark=mark or "") for each in hidden)
        yield Block(mark or "", found["language"], name, text, line)
        hidden.clear()


SHOWN = {
    name: list(blocks_of(text))
    for name, text in PAGES.items()
    if name != "CONTRIBUTING.md" and "/reference/" not in name
}


def plain(output: str) -> str:
    """Leave out empty lines at both ends, and width that a column has for other numbers."""
    return re.sub(r" {2,}", "  ", re.sub(r" +$", "", output, flags=re.M)).strip("\n") + "\n"


# Of a metric, whose last digits are the processor's.
METRIC = re.compile(r"\d+\.\d{3,}")


def pattern_of(shown: str) -> str:
    """A line ``...`` stands for any lines, ``...`` in a line for any text, a metric for any."""

    def of(text: str) -> str:
        return r"(\d+\.\d+)".join(map(re.escape, METRIC.split(text)))

    return "".join(
        r"(?:.*\n)*?" if line == "..." else ".*?".join(map(of, line.split("..."))) + r"\n"
        for line in plain(shown).splitlines()
    )


def is_shown(shown: str, output: str) -> bool:
    """Whether an output is the one that is shown, and each metric near to the shown one."""
    match = re.fullmatch(pattern_of(shown), plain(output))
    metrics = [float(text) for text in METRIC.findall(plain(shown))]
    return match is not None and all(
        math.isclose(float(text), metric, rel_tol=0.05, abs_tol=0.02)
        for text, metric in zip(match.groups(), metrics, strict=True)
    )


class Page:
    """A page whose blocks run in a folder, as if one typed them there."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self._monkeypatch = monkeypatch
        self._namespace = {"__name__": "__main__"}
        self._written: dict[str, Callable[[], object]] = {}

    def run(self, block: Block) -> None:
        if block.name:
            self._check(block.name)
            path = self.folder / block.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text)
            self.forget_modules()
            check = {".py": self._imports, ".conf": load_job}.get(path.suffix)
            if check is not None:
                self._written[block.name] = lambda: check(path)
        if block.language == "hocon" and not block.name:
            self._written[f"line {block.line + 1}"] = partial(self._hocon, block)
        elif not (block.name and block.language in ("python", "hocon")):
            getattr(self, f"_{block.language}")(block)

    def close(self) -> None:
        """Check files and parts of job files, which may name files of later blocks."""
        for name in [*self._written]:
            self._check(name)

    def _check(self, name: str) -> None:
        try:
            self._written.pop(name, lambda: None)()
        except Exception as error:
            error.add_note(f"in {name}")
            raise

    def _imports(self, path: Path) -> None:
        """Compile a file, and make the imports at its top."""
        tree = ast.parse(path.read_text(), path)
        compile(tree, path, "exec", dont_inherit=True)
        nodes = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        with self._at(path):
            for node in nodes:
                modules = [node] if isinstance(node, ast.ImportFrom) else node.names
                names = [
                    getattr(each, "module", None) or getattr(each, "name", "") for each in modules
                ]
                if not all(name.split(".")[0] in OTHERS for name in names):
                    exec(compile(ast.Module([node], []), path, "exec"), {"__name__": path.stem})

    @contextmanager
    def _at(self, script: Path) -> Iterator[None]:
        """Import from the folder of a script, and forget what was imported from there."""
        with self._monkeypatch.context() as patched:
            patched.syspath_prepend(script.parent.resolve())
            try:
                yield
            finally:
                self.forget_modules()

    def _python(self, block: Block) -> None:
        code = compile("\n" * block.line + block.text, self.folder.name, "exec", dont_inherit=True)
        exec(code, self._namespace)

    def _hocon(self, block: Block) -> None:
        part = self.folder / "part.conf"
        part.write_text(block.text)
        given = {key for key, _ in leaves(read_hocon(part).values)}
        missing = [line for line, others in JOB.items() if given.isdisjoint(others)]
        part.write_text("\n".join([*missing, block.text]))
        defaults = {"client.py": "import flstream.client\n", "model.py": "Net = dict\n"}
        made = [name for name in defaults if not (self.folder / name).exists()]
        for name in made:
            (self.folder / name).write_text(defaults[name])
        load_job(part)
        for name in ("part.conf", *made):
            (self.folder / name).unlink()

    def _json(self, block: Block) -> None:
        json.loads(block.text)

    def _csv(self, block: Block) -> None:
        assert len({len(row) for row in csv.reader(block.text.splitlines())}) == 1

    def _text(self, block: Block) -> None:
        pass

    def _sh(self, block: Block) -> None:
        for line in block.text.replace("\\\n", "").splitlines():
            if line and not line.startswith("#"):
                status, output = self._command(line)
                assert status == 0, f"{line}\n{output}"

    def _console(self, block: Block) -> None:
        assert "".join(found[0] for found in COMMAND.finditer(block.text)) == block.text
        for command, shown in COMMAND.findall(block.text):
            status, output = self._command(command.replace("\\\n", ""))
            failed = FAILED.search(shown)
            assert status == (int(failed[1]) if failed else 0), f"{command}\n{output}"
            expected = FAILED.sub("", shown)
            if not is_shown(expected, output):
                raise AssertionError(f"$ {command}\n{output}\nbut the page has\n{expected}")

    def _command(self, line: str) -> tuple[int, str]:
        """Run a command, here if it can be, and return its status and what it prints."""
        words = [] if FOR_A_SHELL.search(QUOTED.sub("", line)) else shlex.split(line, comments=True)
        log = self.folder.with_suffix(".log")
        with log.open("w", buffering=1) as stream:
            if words[:1] == ["flstream"]:
                status = self._here(words, stream, main)
            elif words[:1] == ["python"] and words[1].endswith(".py"):
                with self._at(Path(words[1])):
                    run = partial(runpy.run_path, words[1], run_name="__main__")
                    status = self._here(words[1:], stream, run)
            else:
                status = subprocess.run(
                    ["bash", "-c", line], stdout=stream, stderr=subprocess.STDOUT, timeout=120
                ).returncode
        return status, log.read_text()

    def _here(self, words: list[str], stream, program: Callable[[], object]) -> int:
        """Run a program in this process, where torch is imported and a fork server runs."""
        kept = [os.dup(fd) for fd in (1, 2)]
        with self._monkeypatch.context() as patched:
            patched.setattr(sys, "argv", words)
            patched.setattr(sys, "stdout", stream)
            patched.setattr(sys, "stderr", stream)
            try:
                for fd in (1, 2):
                    os.dup2(stream.fileno(), fd)
                program()
            except SystemExit as ended:
                return ended.code or 0
            except Exception:
                traceback.print_exc()
                return 1
            finally:
                stream.flush()
                for fd, copy in zip((1, 2), kept, strict=True):
                    os.dup2(copy, fd)
                    os.close(copy)
        return 0

    def forget_modules(self) -> None:
        """Forget what was imported from the page's folder, so that another block may replace it."""
        for name, module in [*sys.modules.items()]:
            if str(getattr(module, "__file__", None)).startswith(f"{self.folder}/"):
                del sys.modules[name]
        importlib.invalidate_caches()


@pytest.fixture
def page(tmp_path, monkeypatch, fork_server):
    share_host(monkeypatch)
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    folder = tmp_path / "page"
    ignored = shutil.ignore_patterns("runs", "__pycache__")
    shutil.copytree(ROOT / "jobs", folder / "jobs", ignore=ignored)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    page = Page(folder, monkeypatch)
    yield page
    page.forget_modules()


def cases() -> Iterator[object]:
    for name, blocks in SHOWN.items():
        marks = {block.mark for block in blocks}
        yield pytest.param(name, ("",), id=name)
        if "extra" in marks:
            yield pytest.param(name, ("", "extra"), id=f"{name}-extra", marks=pytest.mark.extras)
        if "nightly" in marks:
            wanted = ("", "extra", "nightly")
            yield pytest.param(name, wanted, id=f"{name}-nightly", marks=pytest.mark.nightly)


@pytest.mark.parametrize(("name", "wanted"), [*cases()])
def test_the_blocks_of_a_page_run(page, name, wanted):
    for block in SHOWN[name]:
        if block.mark in wanted:
            try:
                page.run(block)
            except BaseException as error:
                error.add_note(f"in the block at {name}:{block.line + 1}")
                raise
    page.close()


def test_all_code_stands_in_a_fence_of_a_language_that_is_run_and_little_is_left_out():
    left_out = []
    for name, blocks in SHOWN.items():
        beside = BLOCK.sub("", PAGES[name])
        assert re.findall(r"^ *```.*|^\n {4}.*", beside, flags=re.MULTILINE) == [], name
        for block in blocks:
            assert block.language in LANGUAGES, (name, block)
            if block.mark.startswith("not run: "):
                left_out.append(f"{name}:{block.line}")
            else:
                assert block.mark in ("", "nightly", "extra"), (name, block.mark)
    assert len(left_out) <= 10, left_out
