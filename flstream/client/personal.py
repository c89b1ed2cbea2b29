"""Tensors that stay with a site: a part of the model, or a whole model of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from flstream.aggregation.rules import found_names
from flstream.client import session
from flstream.client.fl_model import FLModel, ParamsType, check_kinds
from flstream.client.own_files import KeptTensors
from flstream.client.ranks import is_first_rank
from flstream.client.seeding import kept_generators, own_seed, seed_everything
from flstream.errors import ClientError, UsageError
from flstream.job.bodies import PERSONAL
from flstream.model.layout import Layout
from flstream.model.memory import MemoryBody

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
    site_session = session.current()
    turn, received = site_session.received_by("personal() was called")
    if patterns is None:
        patterns = received.meta.get(PERSONAL, ())
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
    tensors = tensors_of(net)
    if (layout := turn.layout) is None:  # in a rank other than 0, which has no values of them
        names = frozenset(n for n in tensors if any(re.search(pattern, n) for pattern in patterns))
    else:
        names = personal_names(patterns, layout)
        file = KeptTensors.of(site_session, PERSONAL)
        file.read_into({name: tensors[name] for name in names if name in tensors})
        if turn.kind == "train":
            turn.before_keeping[PERSONAL] = partial(_keep, file, names, layout)
    turn.personal_names = names
    return names


def personal_names(patterns: Sequence[str], layout: Layout) -> frozenset[str]:
    """Return the names of a model's tensors that stay with their site.

    Args:
        patterns: Regular expressions that are found in their names.
        layout: Layout of the model.

    Raises:
        UsageError: A pattern is found in no name, or nothing is left to share.
    """
    names = found_names(PERSONAL, patterns, layout)
    if len(names) == len(layout.tensors):
        raise UsageError(
            f"{PERSONAL}: the patterns are found in the name of every tensor, so nothing is left "
            "to share; flstream inspect lists the names"
        )
    return names


def _keep(file: KeptTensors, names: frozenset[str], layout: Layout, answer: FLModel) -> None:
    """Write the site's version of trained tensors into the site's state."""
    params = answer.params or {}
    if ParamsType(answer.params_type) is not ParamsType.FULL:
        raise ClientError(
            "the answer has differences (params_type DIFF), and the site keeps tensors of its "
            "own; send the trained weights as they are"
        )
    aliases = layout.aliases
    own = {name: value for name, value in params.items() if aliases.get(name, name) in names}
    if missing := names - {aliases.get(name, name) for name in own}:
        raise ClientError(
            f"the answer lacks tensor {min(missing)!r}, which is the site's own; send it with "
            "the others, and it stays with the site"
        )
    body = MemoryBody.of(own, tied=aliases)
    check_kinds(body.layout, layout)
    file.write_body(body)


@contextmanager
def own_model(net: torch.nn.Module) -> Iterator[None]:
    """Work on a site's own model beside the global one, until the end of the block.

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
    site_session = session.current()
    site_session.received_by("own_model() was called")
    if site_session.own_origin is not None:
        raise ClientError("own_model() was called within itself; a site has one such model")
    tensors = tensors_of(net)
    origin = {name: tensor.clone() for name, tensor in tensors.items()}
    site_session.own_origin = origin
    try:
        with kept_generators():
            file = KeptTensors.of(site_session, "model")
            file.read_into(tensors)
            seed_everything(own_seed(site_session.context.seed))
            yield
            if site_session.kind == "train" and is_first_rank():
                file.write(tensors)
    finally:
        site_session.own_origin = None
        for name, tensor in tensors.items():
            tensor.copy_(origin[name])


def tensors_of(net: torch.nn.Module | Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a module's tensors by name, over its memory; a dict's as they are."""
    if isinstance(net, Mapping):
        return net
    return {name: tensor.detach() for name, tensor in net.state_dict().items()}
