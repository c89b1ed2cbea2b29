"""Puts each peer into a virtual environment of its own, at the versions of ``requirements/``.

Installs again only when these change. Needs about 4 GiB of disk.

    python benchmarks/peers/install.py [nvflare] [flower] [pfl]
"""

from __future__ import annotations

import argparse
import subprocess
import sys

from contestants import HERE, VENVS

PEERS = ("nvflare", "flower", "pfl")


def install(peer: str) -> None:
    """Install one peer, if it is not there in just these versions."""
    requirements = HERE / "requirements" / f"{peer}.txt"
    folder = VENVS / peer
    stamp = folder / "installed.txt"
    if stamp.exists() and stamp.read_text() == requirements.read_text():
        return
    print(f"installing {peer} into {folder}", file=sys.stderr, flush=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    pip += ["--disable-pip-version-check"]
    # torch first and alone: a resolver that meets it among others may look at newer builds, with
    # CUDA.
    subprocess.run([*pip, "--constraint", str(requirements), "torch"], check=True)
    # Everything is named, so nothing is left to resolve.
    subprocess.run([*pip, "--no-deps", "--requirement", str(requirements)], check=True)
    stamp.write_text(requirements.read_text())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Install the peers.")
    parser.add_argument("peers", nargs="*", help=f"which of: {', '.join(PEERS)}")
    for chosen in parser.parse_args().peers or PEERS:
        install(chosen)
