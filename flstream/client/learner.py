"""Training code as a class, in place of a script that asks for tasks in a loop."""

from __future__ import annotations

from flstream.client.context import SiteContext
from flstream.client.fl_model import FLModel


class Learner:
    """What ``train.learner`` names: a class with these methods, derived from this one or not.

    Its constructor takes ``train.args`` as keyword arguments. What all sites share, such as a data
    set, is best loaded there: there is one object a process, and a process may work for many
    sites. Nothing that one site leaves in the object may matter for the next one.

    Attributes:
        site: the site to work for, set before each call.
    """

    site: SiteContext

    def setup(self) -> None:
        """Prepare for ``self.site``, which is not the one it was before."""

    def train(self, model: FLModel) -> FLModel:
        """Train the global model.

        Args:
            model: with writable tensors (or arrays, where ``train.exchange_format`` is numpy),
                which may be trained in place.

        Returns:
            What :func:`flstream.client.send` takes: ``params``, ``metrics``, and the weight in
            ``meta["num_examples"]``.
        """
        raise NotImplementedError("a learner has to define train(self, model)")

    def evaluate(self, model: FLModel) -> FLModel:
        """Score the global model; the answer has ``metrics`` and no ``params``."""
        raise NotImplementedError(
            "a learner has to define evaluate(self, model), unless workflow.args.evaluate_every = 0"
        )
