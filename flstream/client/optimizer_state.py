"""The optimizer state of a site's trainings, from one task to the next."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from flstream.client import session
from flstream.client.own_files import KeptTensors
from flstream.errors import ClientError

if TYPE_CHECKING:
    import torch

_PLAIN = "flstream.plain"


def restores_state(wanted: bool) -> bool:
    """Return whether a trainer continues with the state of the site's last training."""
    policy = session.current().turns.optimizer_state
    if policy is None:
        return wanted
    return policy == "local"


def restore_optimizer(
    optimizer: torch.optim.Optimizer,
    name: str = "optimizer",
) -> bool:
    """Continue with the state that the site's last training left of an optimizer.

    Call it once in each training, when the optimizer is made. The state, such as momenta and counts
    of steps, is kept when the task is answered, in the site's own files. Learning rates and other
    settings are those of the optimizer that is given. With ``train.optimizer_state = reset``, and
    in an evaluation, nothing is restored or kept::

        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        flare.restore_optimizer(optimizer)

    These are OpenFL's ``CONTINUE_LOCAL`` and ``RESET``.

    Args:
        optimizer: A torch optimizer that has made no step yet.
        name: Name of the optimizer, where a script has several.

    Returns:
        Whether a state was restored.

    Raises:
        ClientError: There is no task, or the state is of an optimizer of other parameters.
    """
    site_session = session.current()
    if site_session.kind != "train" or site_session.turns.optimizer_state == "reset":
        return False
    file = KeptTensors.of(site_session, name)
    content = file.read()
    if content is not None:
        load_state(optimizer, *content)
    keep = site_session.turn.before_keeping
    keep[file.path.name] = lambda answer: file.write(*split_state(optimizer))
    return content is not None


def split_state(
    optimizer: torch.optim.Optimizer,
) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Return the tensors of an optimizer's state by name, and the rest as text."""
    import torch

    tensors: dict[str, torch.Tensor] = {}
    plain: dict[str, Any] = {}
    for place, values in optimizer.state_dict()["state"].items():
        for key, value in values.items():
            if torch.is_tensor(value):
                tensors[f"{place}.{key}"] = value
            elif value is None or isinstance(value, bool | int | float | str):
                plain[f"{place}.{key}"] = value
            else:
                raise ClientError(
                    f"the state {key!r} of the optimizer is a {type(value).__name__}, and tensors "
                    "and plain values alone are kept; set train.optimizer_state = reset"
                )
    return tensors, {_PLAIN: json.dumps(plain)}


def load_state(
    optimizer: torch.optim.Optimizer,
    tensors: Mapping[str, torch.Tensor],
    text: Mapping[str, str],
    groups: list[dict[str, Any]] | None = None,
) -> None:
    """Load a state that :func:`split_state` returned.

    Args:
        optimizer: The optimizer, of the same parameters.
        tensors: Tensors of the state by name.
        text: The rest of it.
        groups: Settings of the optimizer's groups; None for its own.

    Raises:
        ClientError: The state is of other parameters.
    """
    plain = json.loads(text.get(_PLAIN, "{}"))
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, Any]] = {}
    for name, value in [*plain.items(), *tensors.items()]:
        place, _, key = name.partition(".")
        index = int(place)
        shape = None if name in plain else tuple(tensors[name].shape)
        if index >= len(parameters) or shape not in (None, (), tuple(parameters[index].shape)):
            own = list(parameters[index].shape) if index < len(parameters) else "no tensor"
            raise ClientError(
                f"the state {key!r} that the site's last training has left of parameter {index} of "
                f"the optimizer has shape {None if shape is None else list(shape)}, and there it "
                f"has {own}; make the optimizer of the same parameters in each task, or give each "
                "optimizer a name"
            )
        state.setdefault(index, {})[key] = value
    if groups is None:
        # A script may lower a learning rate from round to round.
        groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
