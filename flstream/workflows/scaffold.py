"""SCAFFOLD (Karimireddy et al. 2020, arXiv:1910.06378)."""

from __future__ import annotations

from flstream.workflows import FoldRule, Model, Run, workflow


@workflow("scaffold")
def scaffold(run: Run) -> Model:
    """Average updates, corrected for drift to sites' own data by control variates.

    The global control is the mean of those of all sites, of which sampled ones change theirs.
    """
    model = run.initial_model(control="zeros")
    mean_of_all = FoldRule(weights=1.0, scale=1 / len(run.all_sites), base="zero")
    for number in run.rounds():
        updates = run.train(model, run.sample(number))
        model = run.fold(model, updates, control=mean_of_all)
        run.evaluate(model)
    return model
