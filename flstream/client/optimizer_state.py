"""The optimizer state of a site's trainings, from one task to the next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flstream.client import session
from flstream.client.own_files import kept_path, load_state, save_state
from flstream.errors import ClientError

if TYPE_CHECKING:
    import torch


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
    path = kept_path(site_session, name, ".pt")
    is_kept = path.exists()
    if is_kept:
        # A script may lower a learning rate from round to round: settings are its own.
        groups = optimizer.state_dict()["param_groups"]
        load_optimizer(optimizer, {"state": load_state(path), "param_groups": groups})
    site_session.turn.before_keeping[path.name] = lambda answer: save_state(
        path,
        optimizer.state_dict()["state"],
        "the state of the optimizer",
        "set train.optimizer_state = reset",
    )
    return is_kept


def load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load a state dict that an optimizer of the site's last training has left.

    Raises:
        ClientError: The state is of other parameters.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for index, values in state["state"].items():
        own = tuple(parameters[index].shape) if index < len(parameters) else None
        for key, value in values.items():
            shape = tuple(getattr(value, "shape", ()))
            if own is None or shape not in ((), own):
                raise ClientError(
                    f"the state {key!r} that the site's last training has left of parameter "
                    f"{index} of the optimizer has shape {list(shape)}, and there it has "
                    f"{'no tensor' if own is None else list(own)}; make the optimizer of the same "
                    "parameters in each task, or give each optimizer a name"
                )
    optimizer.load_state_dict(state)
