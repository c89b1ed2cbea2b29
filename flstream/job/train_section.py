"""The section of a job file that says what each client runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from flstream.job.annotations import ValueKind, described
from flstream.job.bodies import BODY_NAME, OPTIMIZER_STEPS, RESERVED_NAMES, OptimizerState
from flstream.job.command import CommandLine
from flstream.job.files import CodeName, Modules, ScriptFile
from flstream.job.free_values import FREE_ARGS, CodeArgs
from flstream.job.problems import MISSING, Problem, RefusedValueError, must_be
from flstream.job.rules import EACH_ONCE, Section


def _is_moment(name: str) -> str:
    if not BODY_NAME.fullmatch(name):
        raise ValueError("a name has small letters and underscores")
    if name in ("step", OPTIMIZER_STEPS):
        raise ValueError("counts of steps go with the others")
    if name in RESERVED_NAMES:
        raise ValueError("the name has another meaning")
    return name


_MOMENT_NAMES = "a list of names in an optimizer's state, each of them once"


class TrainSection(Section):
    """What each client runs: a script or a learner."""

    script: ScriptFile | None = None
    """The training script that each client runs.

    It asks for tasks in a loop. Where clients share processes, it is run anew for each task.
    """

    learner: Annotated[str, CodeName("Class")] | None = Field(default=None, validate_default=True)
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

    local is the last one of the client, which keeps it in its own files; global is the mean of
    those that the clients of the last round have sent; each workflow begins with a new one. It is
    for code that calls restore_optimizer,
    and for trainers of Lightning and Hugging Face that are patched; null leaves it to them
    (restore_state), and restore_optimizer restores the client's own.
    """

    optimizer_moments: Annotated[
        list[Annotated[str, AfterValidator(_is_moment)]],
        EACH_ONCE,
        ValueKind(_MOMENT_NAMES, "[exp_avg, exp_avg_sq]"),
    ] = Field(default_factory=list, validate_default=True)
    """With optimizer_state = global: the tensors of the optimizer's state that are averaged.

    They have the names that torch gives them: `[momentum_buffer]` of SGD, `[exp_avg, exp_avg_sq]`
    of Adam and AdamW. Each travels with the model in both directions, and takes as many bytes as
    its floats; the counts of steps go with them.
    """

    @field_validator("optimizer_moments")
    @classmethod
    def _of_the_global_state(cls, value: list[str], info: ValidationInfo) -> list[str]:
        if "optimizer_state" not in info.data:
            return value  # its mistake is reported already
        is_global = info.data["optimizer_state"] == "global"
        if is_global and not value:
            hint = "[exp_avg, exp_avg_sq] for Adam and AdamW, [momentum_buffer] for SGD"
            raise must_be(f"{_MOMENT_NAMES}, where train.optimizer_state is global", hint)
        if value and not is_global:
            raise must_be("left out unless train.optimizer_state is global")
        return value

    @field_validator("learner")
    @classmethod
    def _one_of_the_two(cls, value: str | None, info: ValidationInfo) -> str | None:
        # A script that was refused is not in info.data: that mistake is reported already.
        script = info.data.get("script", "refused")
        if value is None and script is None:
            allowed = f"{described(ScriptFile)}, unless train.learner is given"
            raise RefusedValueError(Problem("train.script", MISSING, allowed))
        if value is not None and script is not None:
            hint = "take the learner with train.script = null"
            beside = "given beside train.script"
            raise RefusedValueError(Problem("", beside, "the only one of the two", hint))
        return value

    @field_validator("command")
    @classmethod
    def _of_a_script(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and info.data.get("learner") is not None:
            raise must_be("null beside train.learner, as a command starts a script")
        return value

    @field_validator("args")
    @classmethod
    def _by_name_for_a_learner(
        cls, value: dict[str, Any] | str, info: ValidationInfo
    ) -> dict[str, Any] | str:
        if isinstance(value, str) and info.data.get("learner") is not None:
            raise must_be(f"{FREE_ARGS}, for a learner")
        return value

    @property
    def source(self) -> Path | None:
        """Path of the training code's file; None for the learner of an installed module."""
        if self.learner is None:
            return self.script
        where = self.learner.rpartition(":")[0]
        return Path(where) if where.endswith(".py") else None
