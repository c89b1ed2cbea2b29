"""What takes long to import, or much memory, is not imported where it is not needed."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

# Torch takes a server 150 MiB.
CODECS = """
from flstream.codecs.chain import chain_of
from flstream.job.codecs import CodecPlan, CodecSection
from flstream.model.layout import Layout
from flstream.model.memory import BufferSource
from flstream.model.source import Scratch, views_of

entries = [("a", "F32", (70_000,)), ("b", "BF16", (500,)), ("c", "F64", (90,)), ("d", "F16", (70,))]
layout = Layout.of(entries)
body = BufferSource(layout, memoryview(bytearray(layout.nbytes)))
for name, args in (("cast", {"to": "bf16"}), ("int8", {"group": 64}), ("topk", {"fraction": 0.1})):
    codec = chain_of(CodecPlan([CodecSection(type=name, args=args)])).lossy
    views_of(codec.decode(codec.encode(body), layout), 0, layout.nbytes, Scratch())
"""
EXAMINE = """
from pathlib import Path
import flstream.report.checkpoint
from flstream.inspection.examine import examine
examine(Path("w.safetensors"), stats=True, verify=True, diff=Path("w.npz"))
"""
OF_OTHERS = {"server", "client", "streaming", "aggregation", "codecs", "filters"}
PROGRAMS = {
    "import flstream.cli.app": {*("torch", "numpy", "pydantic", "pyhocon", "psutil", "jinja2")},
    "import flstream.simulation.launcher, flstream.report.running": {
        *("torch", *(f"flstream.{room}" for room in OF_OTHERS))
    },
    # The server of a plain run, in which the fork server of its workers has the rest.
    "import flstream.simulation.server_process": {
        *("torch", "flstream.client", "flstream.filters", "flstream.worker.worker"),
        *("flstream.codecs.lossy", "flstream.aggregation.optimizers", "flstream.server.started"),
    },
    # What a workflow of one's own imports.
    "import flstream.workflows.registry, flstream.workflows.cyclic, flstream.workflows.fedavg": {
        *("torch", "numpy", "rich", "typer")
    },
    CODECS: {"torch"},
    EXAMINE: {"torch", "pydantic", "pyhocon"},
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_imports_nothing_heavy_that_it_does_without(tmp_path, program):
    save_file({"w": torch.ones(3)}, tmp_path / "w.safetensors")
    np.savez_compressed(tmp_path / "w.npz", w=np.ones(3))
    line = f"{program}\nimport sys\nprint({PROGRAMS[program]!r} & sys.modules.keys())"
    command = [sys.executable, "-c", line]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
