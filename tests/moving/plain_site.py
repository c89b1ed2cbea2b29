"""A site without flstream: a plain process that runs a script once, under the stand-in.

python plain_site.py SEED SCRIPT [ARGUMENT]...
"""

import runpy
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent / "stand_in"))
import nvflare.client

if __name__ == "__main__":
    sys.argv = sys.argv[1:]
    start, script = int(sys.argv.pop(0)), sys.argv[0]
    torch.set_num_threads(1)
    sys.path.insert(0, str(Path(script).parent))
    nvflare.client.seed(start)
    runpy.run_path(script, run_name="__main__")
