"""A learner that trains nothing: its time is simulated."""

import torch

import flstream.client as flare


def build():
    """Return the model: four numbers."""
    return {"w": torch.zeros(4)}


class Learner(flare.Learner):
    """Adds the number of its inner steps, as the work of one example."""

    def train(self, model):
        """Train; see the class."""
        params = {"w": model.params["w"] + model.meta["inner_steps"]}
        return flare.FLModel(params=params, meta={"num_examples": 1})
