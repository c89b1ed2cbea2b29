"""The optimizer state that a job's sites share, of ``train.optimizer_state = global``.

Each tensor of it is a body beside the model, folded as the model is; so are the counts of steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flstream.client import session
from flstream.client.rank_session import RankSession
from flstream.errors import ClientError
from flstream.job.bodies import OPTIMIZER_STEPS

if TYPE_CHECKING:
    import torch

    Tensors = Mapping[str, torch.Tensor]

_STEP = "step"


def has_global_state() -> bool:
    """Return whether the optimizer of the current training has the state that all sites share.

    A model of the site's own beside the global one has a state of its own.
    """
    here = session.current()
    if here.kind != "train" or here.optimizer_state != "global":
        return False
    return here.received is None or not here.received.meta.get("personal")


def begin_with_global_state(
    optimizer: torch.optim.Optimizer, model: torch.nn.Module | Tensors | None
) -> bool:
    """Have an optimizer begin with the shared state, and send what it makes of it with the answer.

    Args:
        optimizer: A torch optimizer that has made no step yet.
        model: The module that has its parameters, or tensors over their memory by the names of the
            received model; None where the optimizer knows their names.

    Returns:
        Whether there was a state of an earlier round.

    Raises:
        ClientError: The model was not received yet or lacks a parameter, the names are not known,
            or the site has several processes.
    """
    here = session.current()
    if isinstance(here, RankSession) or here.place.ranks > 1:
        raise ClientError(
            "train.optimizer_state = global is for sites of one process, as rank 0 alone receives "
            "tensors; set reset or local"
        )
    if here.received is None:
        raise ClientError("restore_optimizer needs the model's task; call receive() first")
    shared, kept = _received(here.received.meta, here.optimizer_moments)
    names = [kept.get(name, name) for name in _names_of(optimizer, model)]
    if unknown := [name for name in names if name not in shared[OPTIMIZER_STEPS]]:
        raise ClientError(
            f"the received model has no tensor {unknown[0]!r}, which the optimizer steps; give "
            "restore_optimizer the module that the model is loaded into, or set "
            "train.optimizer_state = local for tensors that stay with their site"
        )
    if twice := sorted(here.optimized.intersection(names)):
        raise ClientError(
            f"two optimizers step tensor {twice[0]!r}, and train.optimizer_state = global has one "
            "state of each; set reset or local"
        )
    here.optimized.update(names)
    state = {
        place: values for place, name in enumerate(names) if (values := _values_of(shared, name))
    }
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    # What no optimizer here steps goes back as it came.
    here.send_beside(shared)
    here.before_keeping(lambda: here.send_beside(_made(optimizer, names, shared)))
    return bool(state)


def _received(
    meta: Mapping[str, Any], moments: Sequence[str]
) -> tuple[dict[str, dict[str, torch.Tensor]], dict[str, str]]:
    """Return the shared state as it was received.

    Returns:
        Tensors by body and name, each of tied ones once; and by each name that one.
    """
    import torch

    first: dict[int, str] = {}
    kept = {name: first.setdefault(id(each), name) for name, each in meta[OPTIMIZER_STEPS].items()}
    names = set(kept.values())
    shared = {
        body: {name: torch.as_tensor(each) for name, each in meta[body].items() if name in names}
        for body in (*moments, OPTIMIZER_STEPS)
    }
    return shared, kept


def _names_of(
    optimizer: torch.optim.Optimizer, model: torch.nn.Module | Tensors | None
) -> list[str]:
    """Return the names of an optimizer's parameters, in their order there.

    Raises:
        ClientError: One has none; the message says how to name them.
    """
    if model is None:
        named = [name for group in optimizer.param_groups for name in group.get("param_names", ())]
        if not named:
            raise ClientError(
                "train.optimizer_state = global needs the names of the optimizer's parameters; "
                "call restore_optimizer(optimizer, model=net), or make the optimizer of "
                "net.named_parameters()"
            )
        return named
    tensors = model if isinstance(model, Mapping) else model.state_dict()
    by_memory = {each.data_ptr(): name for name, each in tensors.items()}
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    for place, each in enumerate(parameters):
        if each.data_ptr() not in by_memory:
            raise ClientError(
                f"parameter {place} of the optimizer, of shape {list(each.shape)}, is none of the "
                "model that restore_optimizer was given; give it the module that is trained"
            )
    return [by_memory[each.data_ptr()] for each in parameters]


def _values_of(shared: Mapping[str, Tensors], name: str) -> dict[str, Any]:
    """Return the state of one parameter; nothing before it has made a step."""
    values = {body: tensors[name] for body, tensors in shared.items() if body != OPTIMIZER_STEPS}
    steps = shared[OPTIMIZER_STEPS][name]
    if not steps and not any(bool(each.any()) for each in values.values()):
        return {}
    # Optimizers without a count have none in their state.
    return values | ({_STEP: steps.clone()} if steps else {})


def _made(
    optimizer: torch.optim.Optimizer, names: Sequence[str], shared: Mapping[str, Tensors]
) -> dict[str, dict[str, torch.Tensor]]:
    """Return the tensors of an optimizer's state by body and name, as the server has them.

    Raises:
        ClientError: The optimizer keeps other ones.
    """
    import torch

    moments = sorted(shared.keys() - {OPTIMIZER_STEPS})
    made: dict[str, dict[str, torch.Tensor]] = {body: {} for body in shared}
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    for name, parameter in zip(names, parameters, strict=True):
        values = {
            key: value
            for key, value in optimizer.state.get(parameter, {}).items()
            if value is not None
        }
        if not values:
            continue
        steps = torch.as_tensor(values.pop(_STEP, 0.0), dtype=torch.float32)
        for key, value in values.items():
            if not torch.is_tensor(value) or value.shape != parameter.shape:
                raise ClientError(
                    f"the state {key!r} of the optimizer is no tensor of its parameter's shape, "
                    "and cannot be averaged; set train.optimizer_state = local"
                )
        if sorted(values) != moments:
            raise ClientError(
                f"the optimizer keeps {', '.join(sorted(values)) or 'nothing'} of {name!r}, and "
                f"train.optimizer_moments names {', '.join(moments)}; name there what it keeps"
            )
        made[OPTIMIZER_STEPS][name] = steps.reshape(()).cpu()
        for key, value in values.items():
            made[key][name] = value.detach().to("cpu", shared[key][name].dtype)
    return made
