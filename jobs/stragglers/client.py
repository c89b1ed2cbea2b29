"""What each site does: softmax regression on digits of its own, of which some have more."""

import numpy as np
from sklearn.datasets import load_digits

import flstream.client as flare


class Digits(flare.Learner):
    """One object works for many sites, so what all of them share is loaded once."""

    def __init__(self, split_seed, examples, spread, held_out, epochs, lr):
        digits = load_digits()
        self.images = digits.data.astype(np.float32) / 16
        self.labels = np.eye(10, dtype=np.float32)[digits.target]
        order = np.random.default_rng(split_seed).permutation(len(self.images))
        self.test, self.rest = order[:held_out], order[held_out:]
        self.split_seed, self.examples, self.spread = split_seed, examples, spread
        self.epochs, self.lr = epochs, lr

    def setup(self):
        """Draw this site's examples, a lognormal number. They follow from its index."""
        rng = np.random.default_rng([self.split_seed, self.site.index])
        count = max(1, round(self.examples * np.exp(self.spread * rng.normal())))
        mine = self.rest[rng.integers(len(self.rest), size=count)]
        self.mine = self.images[mine], self.labels[mine]

    def train(self, model):
        """Train the global model in place, and send it back."""
        images, labels = self.mine
        weight, bias = model.params["weight"], model.params["bias"]
        for _ in range(self.epochs):
            shares = softmax(images @ weight + bias)
            error = (shares - labels) * (self.lr / len(images))
            weight -= images.T @ error
            bias -= error.sum(axis=0)
        loss = -np.log((shares * labels).sum(axis=1) + 1e-9).mean()
        meta = {"num_examples": len(images)}
        return flare.FLModel(model.params, metrics={"loss": loss}, meta=meta)

    def evaluate(self, model):
        """Score the global model on a tenth of the digits that no site trains on."""
        mine = self.test[self.site.index % 10 :: 10]
        scores = self.images[mine] @ model.params["weight"] + model.params["bias"]
        right = scores.argmax(axis=1) == self.labels[mine].argmax(axis=1)
        return flare.FLModel(metrics={"accuracy": right.mean()}, meta={"num_examples": len(mine)})


def softmax(logits):
    """Rows that add up to 1."""
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)
