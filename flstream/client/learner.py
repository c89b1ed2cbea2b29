"""Training code as a class, instead of a script that asks for tasks in a loop."""

from __future__ import annotations

from flstream.client.context import SiteContext
from flstream.client.fl_model import FLModel


class Learner:
    """Base class of learners; ``train.learner`` may name any class with these methods.

    One with a method ``evaluate(self, model)`` is asked to score models, and returns an
    :class:`FLModel` with ``metrics`` and no ``params``. Without it, the metrics of its updates
    score the model that it had received. One with a method ``submit_model(self, model)`` answers
    cross-site evaluation with a model of the site's own, as an :class:`FLModel` with ``params``;
    ``model`` has none. Without it, the last model that the site sent is its own.

    The constructor takes ``train.args`` as keyword arguments. It is the place to load data that all
    sites share: each process has one learner, and may use it for many sites. The results for a site
    must not depend on attributes that another site has changed.

    Attributes:
        site: Current site and task, set before each call.
    """

    site: SiteContext

    def setup(self) -> None:
        """Prepare for ``self.site``; called when it is another site than in the last task."""

    def train(self, model: FLModel) -> FLModel:
        """Train the global model.

        Args:
            model: Global model, with writable tensors (or arrays, if ``train.exchange_format`` is
                numpy) that may be trained in place.

        Returns:
            The update, as for :func:`flstream.client.send`: ``params``, ``metrics``, and its weight
            in ``meta["num_examples"]``.
        """
        raise NotImplementedError("a learner has to define train(self, model)")
