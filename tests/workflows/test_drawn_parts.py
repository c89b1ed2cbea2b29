"""A workflow as a newcomer wrote it from the documentation: DiLoCo whose fragments are drawn."""

from itertools import pairwise

import torch
from safetensors.torch import load_file
from test_diloco import MODEL, PROCESSES, SCRIPT
from training_scripts import QUIET, results

from flstream.model.memory import MemoryBody
from flstream.model.selection import Part, selected_names

DRAWN = '''
"""DiLoCo that exchanges some parts of the model each round, drawn at random."""

from pydantic import Field

from flstream.workflows import Model, Run, WorkflowArgs, nesterov, workflow


class DrawnArgs(WorkflowArgs):
    """Arguments of drawn."""

    parts: int = Field(default=6, ge=1)
    """Number of parts of the model."""

    exchanged: int = Field(default=2, ge=1)
    """How many of them a round exchanges."""

    inner_steps: int = Field(default=4, ge=1)
    """Inner steps of a round."""


@workflow("drawn", DrawnArgs)
def drawn(run: Run, args: DrawnArgs) -> Model:
    """Step along the mean change of the drawn parts; all others stay at the sites."""
    model, parts, received = run.initial_model(), run.partition(args.parts), None
    draw, step = run.random("parts"), nesterov(0.7, 0.9)
    for number in run.rounds():
        sent = draw.sample(parts, args.exchanged)
        for place, part in enumerate(sent):
            run.log(f"drawn/{place}", parts.index(part))
        meta = {"inner_steps": args.inner_steps}
        updates = run.train(model, run.sample(number), receive=received, send=sent, meta=meta)
        model, received = run.fold(model, updates, step=step), sent
        run.evaluate(model)
    return model
'''


def test_a_round_changes_the_drawn_parts_alone_and_the_same_ones_anywhere(jobs):
    assert len(DRAWN.strip().splitlines()) <= 40
    (jobs.folder / "drawn.py").write_text(DRAWN)
    kind = 'workflow.type="drawn.py:drawn"'
    how = [QUIET, kind, "clients.count=3", "rounds=4", 'model.factory="model:Net"']
    inline = jobs.run(SCRIPT, *how, model=MODEL).finished()
    shared = jobs.run(SCRIPT, *how, PROCESSES, "clients.parallel=1", model=MODEL).finished()
    assert results(inline) == results(shared)
    models = [load_file(inline.directory.checkpoint(number)) for number in range(5)]
    layout, names = MemoryBody.of(models[0]).layout, tuple(models[0])
    parts = [selected_names("", (Part(index, 6),), layout, names) for index in range(6)]
    for before, after in pairwise(models):
        changed = {name for name in names if not torch.equal(before[name], after[name])}
        drawn = [part for part in parts if part & changed]
        assert len(drawn) == 2
        assert changed == drawn[0] | drawn[1]
