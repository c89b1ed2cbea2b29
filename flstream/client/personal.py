"""Tensors that stay with a site: a part of the model, or a whole model of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from flstream.client import session
from flstream.client.own_files import KeptTensors
from flstream.client.ranks import is_first_rank
from flstream.client.seeding import kept_generators, own_seed, seed_everything
from flstream.errors import ClientError
from flstream.job.bodies import PERSONAL

if TYPE_CHECKING:
    import torch


def personal(
    net: torch.nn.Module | Mapping[str, Any], patterns: Sequence[str] | None = None
) -> frozenset[str]:
    """Keep a part of the model at its site, such as its head.

    It is FedPer (Arivazhagan et al. 2019, arXiv:1912.00818). Call it once in each task, trainings
    and evaluations, when the model was received and before it is used::

        model = flare.receive(into=net)
        flare.personal(net, ["^head"])

    The site's own last values of these tensors are put in place of the received ones. When a
    training is answered, they are kept in the site's state, and only the others are sent.

    Args:
        net: Module or dict of tensors or arrays, by the model's names, which are written to.
        patterns: Regular expressions: a tensor in whose name one is found is the site's own. None
            takes those that the server gives (``personal`` of the received ``meta``, as the
            workflow ``fedper`` does), and does nothing where it gives none.

    Returns:
        Names of the tensors.

    Raises:
        ClientError: There is no received model, the patterns are none, or a tensor has another
            shape than the site's own.
        UsageError: A pattern is found in no name, or nothing is left to share.
    """
    here = session.current()
    if here.received is None:
        raise ClientError("personal() was called before the model was received; call receive()")
    if patterns is None:
        patterns = here.received.meta.get(PERSONAL, ())
    if isinstance(patterns, str):
        raise ClientError(f"personal() was given {patterns!r}; give it a list of patterns")
    if not patterns:
        return frozenset()
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ClientError(
                f"personal() was given {pattern!r}, which is no regular expression: {error}"
            ) from error
    return here.keep_personal(list(patterns), tensors_of(net))


@contextmanager
def own_model(net: torch.nn.Module) -> Iterator[None]:
    """Work on a model of the site's own beside the global one, until the end of the block.

    It is Ditto (Li et al. 2021, arXiv:2012.04221), with :func:`proximal_term` in the loss::

        model = flare.receive(into=net)
        with flare.own_model(net):
            train(net)
        train(net)

    In the block, ``net`` has the values that the site's last such training has left; before the
    first one, those that were received. After it, ``net`` has the received ones again, and random
    generators go on as if there had been no block: the global model is the same as without it. In
    an evaluation nothing is kept.

    Args:
        net: Module into which the model was received.

    Raises:
        ClientError: There is no received model, or a tensor has another shape than the site's own.
    """
    here = session.current()
    if here.received is None:
        raise ClientError("own_model() was called before the model was received; call receive()")
    tensors = tensors_of(net)
    origin = {name: tensor.clone() for name, tensor in tensors.items()}
    with kept_generators(), here.with_own_model(origin):
        kept = KeptTensors.of(here, "model")
        kept.read_into(tensors)
        seed_everything(own_seed(here.task_seed))
        try:
            yield
            if here.kind == "train" and is_first_rank():
                kept.write(tensors, {})
        finally:
            for name, tensor in tensors.items():
                tensor.copy_(origin[name])


def tensors_of(net: torch.nn.Module | Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the tensors of a module by name, over its memory; those of a dict as they are."""
    if isinstance(net, Mapping):
        return net
    return {name: tensor.detach() for name, tensor in net.state_dict().items()}
