"""What each site does: logistic regression on a few points of its own, in NumPy."""

import numpy as np

import flstream.client as flare


class Line(flare.Learner):
    """One object works for many sites; what belongs to one of them is made in setup()."""

    def __init__(self, examples, steps, lr):
        self.examples, self.steps, self.lr = examples, steps, lr
        self.unseen = draw(np.random.default_rng(0), 1000)

    def setup(self):
        """Draw this site's points. They follow from its index, whichever process it is in."""
        self.mine = draw(np.random.default_rng([1, self.site.index]), self.examples)

    def train(self, model):
        """Train the global model in place, and send it back."""
        points, labels = self.mine
        weight, bias = model.params["weight"], model.params["bias"]
        for _ in range(self.steps):
            error = 1 / (1 + np.exp(-(points @ weight + bias))) - labels
            weight -= self.lr * (points.T @ error) / len(points)
            bias -= self.lr * error.mean()
        return flare.FLModel(model.params, meta={"num_examples": len(points)})

    def evaluate(self, model):
        """Score the global model on points that no site has."""
        points, labels = self.unseen
        above = points @ model.params["weight"] + model.params["bias"] > 0
        return flare.FLModel(metrics={"accuracy": (above == labels).mean()})


def draw(rng, count):
    """Points (count, 2), and for each whether it lies above the line."""
    points = rng.normal(size=(count, 2)).astype(np.float32)
    return points, points @ [0.8, -0.6] > 0.3
