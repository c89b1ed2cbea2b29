"""Adapters of another rank than the run's model has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flstream.errors import ClientError, LayoutError
from flstream.model.lora import lora_pairs


def to_rank(params: Mapping[str, Any], rank: int) -> dict[str, Any]:
    """Return LoRA factors of another rank, for workflows of sites of unequal ranks.

    A smaller rank keeps the first rows of A and columns of B, which have the largest singular
    values under ``workflow.type = hlora``; a larger one has zeros behind them, so that B times A
    stays the same::

        rank, most = flare.system_info()["site_args"]["rank"], 16
        net = get_peft_model(flare.base_model(), LoraConfig(r=rank, lora_alpha=2 * rank))
        while flare.is_running():
            model = flare.receive()
            set_peft_model_state_dict(net, flare.to_rank(model.params, rank))
            train(net)
            params = flare.to_rank(get_peft_model_state_dict(net), most)
            flare.send(flare.FLModel(params=params))

    The server averages products of factors as they are. So ``lora_alpha / r``, by which PEFT
    multiplies them, has to be the same at all sites.

    Args:
        params: Tensors or NumPy arrays by name, as PEFT names them; those of no pair stay.
        rank: The rank, 1 or more.

    Returns:
        The tensors by name; factors of another rank than before are copies.

    Raises:
        ClientError: There is no pair of factors, or the rank is none.
    """
    if not isinstance(rank, int) or isinstance(rank, bool) or rank < 1:
        raise ClientError(f"to_rank() was given the rank {rank!r}; give it a whole number from 1")
    try:
        pairs = lora_pairs(params)
    except LayoutError as error:
        raise ClientError(f"to_rank() was given no LoRA factors: {error}") from error
    new = dict(params)
    for pair in pairs.values():
        for name, axis in ((pair.a, 0), (pair.b, 1)):
            if len(params[name].shape) != 2:
                raise ClientError(
                    f"to_rank() was given the factor {name!r} of {len(params[name].shape)} "
                    "dimensions; adapt linear layers alone"
                )
            new[name] = _of_length(params[name], axis, rank)
    return new


def _of_length(tensor: Any, axis: int, length: int) -> Any:
    """Return a matrix cut, or with zeros behind it, to a length of an axis."""
    if tensor.shape[axis] == length:
        return tensor
    shape = list(tensor.shape)
    shape[axis] = length
    kept = slice(min(length, tensor.shape[axis]))
    place = (kept,) if axis == 0 else (slice(None), kept)
    if hasattr(tensor, "new_zeros"):
        tensor, new = tensor.detach(), tensor.new_zeros(shape)
    else:
        import numpy as np

        new = np.zeros(shape, tensor.dtype)
    new[place] = tensor[place]
    return new
