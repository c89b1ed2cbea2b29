"""The script's training as a learner, on arrays."""

import json

import numpy as np

import flstream.client as flare


class Line(flare.Learner):
    """Moves the weights a quarter of the way to the site's own numbers, with a step it keeps."""

    def setup(self):
        """Draw the site's own numbers."""
        self.rng = np.random.default_rng(self.site.index)
        self.aim = self.rng.integers(-64, 65, 4096) / 64

    def train(self, model):
        """Train in place; the noise is the task's own."""
        path = self.site.state_dir / "kept.json"
        trained = json.loads(path.read_text()) if path.exists() else 0
        base = model.params["base"].numpy()
        aim = np.resize(self.aim, base.shape).astype(base.dtype)
        base += (aim - base) / 4 + np.random.randint(-8, 9, base.shape).astype(base.dtype) / 256
        model.params["wide"] += trained / 8
        path.write_text(json.dumps(trained + 1))
        return flare.FLModel(model.params, meta={"num_examples": 3 + self.site.index})

    def evaluate(self, model):
        """The share of weights within a half of the site's own numbers."""
        base = model.params["base"].numpy()
        near = np.abs(base - np.resize(self.aim, base.shape).astype(base.dtype)) < 0.5
        return flare.FLModel(metrics={"accuracy": float(near.sum()) / near.size})
