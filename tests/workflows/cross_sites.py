"""Sites whose score tells exactly which model they were given, and what comes of a run of them."""

import json
import zlib
from pathlib import Path

from safetensors.torch import load_file
from training_scripts import noisy

FINAL, BEST = "SRV_FL_global_model.pt", "SRV_best_FL_global_model.pt"
AFTER_FEDAVG = "workflow=[{args{key_metric=check}},{type=cross_site,args{key_metric=check}}]"

# A checksum of the weights that begins with the site's name.
_SCORES = """
import zlib


def score(params):
    value = zlib.crc32(flare.get_site_name().encode())
    for name in sorted(params):
        value = zlib.crc32(np.asarray(params[name]).tobytes(), value)
    return {"check": float(value)}


def keep(params):
    import os
    from safetensors.torch import save_file
    save_file(params, os.path.join(flare.system_info()["site_dir"], "sent.safetensors"))
"""


def checking(body: str = "", first: str = "") -> str:
    """The sites of :func:`training_scripts.noisy`, which keep a copy of what they send last.

    Args:
        body: Comes before a training is answered.
        first: Comes before it is looked at what the task is.
    """
    return noisy(f"keep(params)\n{body}", scores=_SCORES, first=first)


def check(site: str, model: Path) -> float:
    """What a site of :func:`checking` finds of a model's file."""
    params, value = load_file(model), zlib.crc32(site.encode())
    for name in sorted(params):
        value = zlib.crc32(params[name].numpy().tobytes(), value)
    return float(value)


def matrix(run) -> dict:
    """What the run has written."""
    return json.loads((run.directory.path / "cross_site/cross_val_results.json").read_text())


def due(run, sites) -> dict:
    """What it should have written, going by the files of the models."""
    directory = run.directory
    files = {FINAL: directory.final_model, BEST: directory.best_model}
    files |= {owner: directory.last_model(owner) for owner in sites}
    return {
        site: {owner: {"check": check(site, path)} for owner, path in files.items()}
        for site in sites
    }
