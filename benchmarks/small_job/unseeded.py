"""A user's workflow with a mistake: it draws sites from ``random`` instead of ``run.random``."""

import random


def unseeded(run):
    """Train five sites a round, others each time that the program is run."""
    model = run.initial_model()
    for _ in run.rounds():
        model = run.fold(model, run.train(model, random.sample(run.sites, 5)))
        run.evaluate(model)
    return model
