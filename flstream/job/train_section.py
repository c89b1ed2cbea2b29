"""The section of a job file that says what each client runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from flstream.job.bodies import OptimizerState
from flstream.job.command import CommandLine
from flstream.job.fields import CodeArgs, Section
from flstream.job.files import Modules, ScriptFile, code_name
from flstream.job.keys import schema_of, words
from flstream.job.problems import MISSING, Problem, RefusedValueError


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

    command: CommandLine | None = None
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
    def source(self) -> Path | None:
        """Path of the training code's file; None for the learner of an installed module."""
        if self.learner is None:
            return self.script
        where = self.learner.rpartition(":")[0]
        return Path(where) if where.endswith(".py") else None
