"""Adapters of another rank than the run's model has."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flstream.client import session
from flstream.client.residual import adapter_scalings
from flstream.errors import ClientError, LayoutError
from flstream.model.lora import check_matrices, lora_pairs


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
    multiplies them, has to be the same at all sites: that of the run's model. It is checked where
    the adapter is around ``flare.base_model()``, and ``model.factory`` returns one of PEFT.

    Args:
        params: Tensors or NumPy arrays by name, as PEFT names them; those of no pair stay.
        rank: The rank, 1 or more.

    Returns:
        The tensors by name; factors of another rank than before are copies.

    Raises:
        ClientError: There is no pair of factors, the rank is none, or the site's adapter has
            another scaling than the run's model.
    """
    if not isinstance(rank, int) or isinstance(rank, bool) or rank < 1:
        raise ClientError(f"to_rank() was given the rank {rank!r}; give it a whole number from 1")
    try:
        pairs = lora_pairs(params)
        check_matrices({name: params[name].shape for pair in pairs.values() for name in pair})
    except LayoutError as error:
        raise ClientError(f"to_rank() was given no LoRA factors: {error}") from error
    _check_scaling()
    new = dict(params)
    for pair in pairs.values():
        for name, axis in ((pair.a, 0), (pair.b, 1)):
            new[name] = _of_length(params[name], axis, rank)
    return new


def _check_scaling() -> None:
    """Refuse an adapter of the site that scales its product otherwise than the run's model does."""
    own, scalings = session.present(), adapter_scalings()
    if own is None or not scalings:
        return
    try:
        site = own.context
        # Kept by the model builder, for exports.
        path = Path(site.folder).parents[1] / "export" / "adapter_config.json"
        config = json.loads(path.read_bytes())
    except (ClientError, FileNotFoundError):  # no task yet, or another adapter than PEFT's
        return
    if config.get("rank_pattern") or config.get("alpha_pattern"):
        return
    rank = math.sqrt(config["r"]) if config.get("use_rslora") else config["r"]
    due = config["lora_alpha"] / rank
    wrong = sorted(scaling for scaling in scalings if not math.isclose(scaling, due))
    if wrong:
        raise ClientError(
            f"the adapter of {site.name} multiplies the product of its factors by {wrong[0]:g} "
            f"(lora_alpha / r), and that of model.factory by {due:g}; products are averaged as "
            "they are, so give the site's adapter a lora_alpha that comes to the same"
        )


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
