"""A client for the exchange job whose updates codecs find as hard as real ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import flstream.client as flare
from flstream.bench.model_like import add_update


def change(params: Mapping[str, Any], site: int, round_number: int) -> None:
    """Add a site's update of a round to every weight, in place."""
    for name, tensor in params.items():
        add_update(name, tensor.numpy().reshape(-1), site, round_number)


def main() -> None:
    """Serve task after task."""
    flare.init()
    site = int(flare.get_site_name().removeprefix("site-"))
    while flare.is_running():
        model = flare.receive()
        # A running job has sent a model, with its round.
        assert model is not None
        assert model.params is not None
        assert model.current_round is not None
        change(model.params, site, model.current_round)
        flare.send(flare.FLModel(params=model.params))


if __name__ == "__main__":
    main()
