"""Sections of the job file for code of the client API: training, and central evaluation."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, ValidationInfo, model_validator

from flstream.job.bodies import OptimizerState
from flstream.job.code import file_of
from flstream.job.fields import Allowed, CodeArgs, Section, folder_of, shell_words
from flstream.job.files import Modules, ScriptFile, code_name
from flstream.job.keys import schema_of, words
from flstream.job.problems import MISSING, Problem, RefusedValueError


def _command(text: str, info: ValidationInfo) -> str:
    """Return a command whose first word is an existing program, with its full path."""
    words = shell_words(text)
    if not words:
        raise ValueError("")  # the words of the type say all
    first, *others = words
    if "/" in first:
        path = os.path.abspath(folder_of(info) / first)
        if not os.access(path, os.X_OK) or os.path.isdir(path):
            raise ValueError(f"there is no program {path}")
        return text if path == first else shlex.join([path, *others])
    if _program_path(first) is None:
        where = f"{Path(sys.executable).parent} or on PATH"
        raise ValueError(f"there is no program {first} in {where}; install it")
    return text


def _program_path(name: str) -> str | None:
    """Return the path of a program, first of this interpreter's environment."""
    if name in ("python", "python3"):
        return sys.executable
    if "/" in name:
        return name
    return shutil.which(name, path=os.path.dirname(sys.executable)) or shutil.which(name)


_CommandLine = Annotated[
    str,
    AfterValidator(_command),
    Allowed("a launcher and its options, such as torchrun --nproc_per_node=2"),
]


class TrainSection(Section):
    """Training code of the clients: a script or a learner."""

    script: ScriptFile | None = None
    """The training script that each client runs.

    It asks for tasks in a loop. Where clients share processes, it is run anew for each task.
    """

    learner: Annotated[str, *code_name("Class")] | None = None
    """The class with methods train and evaluate: `module:Class` or `path/to/file.py:Class`.

    There is one object of it a process, which may work for many clients. The module is a .py file
    beside the job file, or an installed one.
    """

    command: _CommandLine | None = None
    """The launcher that starts the script's processes, such as `torchrun --nproc_per_node=2`.

    Null runs the script in the site's own process. Rank 0 has the tasks and the model, and the
    other ranks follow it. python and python3 are the interpreter that runs flstream, and other
    programs are looked for beside it first. Each client needs a process of its own.
    """

    args: CodeArgs = Field(default_factory=dict)
    """Arguments of the script, as `--key value`, or keyword arguments of the learner.

    For a script, true gives `--key` alone, false and null give nothing, and a list gives
    `--key a b`. They may also be one text, as on a shell: `"--lr 0.1 --verbose"`.
    """

    alias: Literal["nvflare"] | None = None
    """The other framework whose names the training code may import; null is none.

    With nvflare, `import nvflare.client as flare`, its tracking and the constants that scripts
    import lead to flstream, whether or not nvflare is installed.
    """

    preload: Modules = Field(default_factory=list)
    """Libraries that are imported once, before the clients' processes are forked.

    What the training code imports from them, anywhere, is imported too: with `[transformers, trl]`
    each client saves seconds, and hundreds of MiB are in memory once. A library that starts threads
    when it is imported is refused. numpy, pandas, PIL, scipy and sklearn need not be named.
    """

    exchange_format: Literal["pytorch", "numpy"] = "pytorch"
    """What the script receives: pytorch tensors or numpy arrays.

    It decides which of the two chunk sizes applies on the way to the client.
    """

    optimizer_state: OptimizerState | None = None
    """What a client's optimizer begins a training with: a new state (reset), or an earlier one.

    local is the last one of the client, which keeps it in its own files; each workflow begins with
    a new one. It is for code that calls restore_optimizer, and for trainers of Lightning and
    Hugging Face that are patched; null leaves it to them (restore_state), and restore_optimizer
    restores the client's own.
    """

    @model_validator(mode="after")
    def _has_code(self) -> Self:
        if self.script is None and self.learner is None:
            allowed = f"{words(schema_of(ScriptFile))}, unless train.learner is given"
            raise RefusedValueError(Problem("script", MISSING, allowed))
        return self

    @property
    def command_words(self) -> list[str] | None:
        """Words of the command, with the path of its program (its name if there is none)."""
        if self.command is None:
            return None
        first, *others = shlex.split(self.command)
        return [_program_path(first) or first, *others]

    @property
    def source(self) -> Path | None:
        """Path of the training code's file; None for the learner of an installed module."""
        return self.script if self.learner is None else file_of(self.learner)


CODE_KEYS = ("script", "learner", "args")
"""Keys of a section that names code of the client API."""


class EvaluateSection(Section):
    """Scoring of the global models: at the sites, or centrally, on data that no site has."""

    at: Literal["sites", "server"] = "sites"
    """Who scores the models that are due (`workflow.args.evaluate_every`): sites, or the server.

    server: a process of its own on the server's machine, the evaluator, runs the script or the
    learner of this section. Its metrics decide the best model, stop_when and patience. Sites are
    sent no evaluations, unless workflow.args.evaluate = task; what they score, also with their
    updates, is in summary.json as `site_metrics`.
    """

    script: ScriptFile | None = None
    """The script of the evaluator: a training script's loop that sends metrics and no weights."""

    learner: Annotated[str, *code_name("Class")] | None = None
    """The class with a method evaluate: `module:Class` or `path/to/file.py:Class`."""

    args: CodeArgs = Field(default_factory=dict)
    """Arguments of the script, as `--key value`, or keyword arguments of the learner."""

    @property
    def source(self) -> Path | None:
        """Path of the code's file; None without one, as for the learner of an installed module."""
        return self.script if self.learner is None else file_of(self.learner)
