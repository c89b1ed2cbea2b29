"""A server that encodes and decodes stays as small as it is: torch takes 150 MiB."""

import subprocess
import sys

SCRIPT = """
import sys
from flstream.codecs.chain import chain_of
from flstream.job.codecs import CodecPlan, CodecSpec
from flstream.model.source import Scratch, views_of
from flstream.model.layout import Layout
from flstream.model.memory import BufferSource

entries = [("a", "F32", (70_000,)), ("b", "BF16", (500,)), ("c", "F64", (90,)), ("d", "F16", (70,))]
layout = Layout.of(entries)
body = BufferSource(layout, memoryview(bytearray(layout.nbytes)))
for name, args in (("cast", {"to": "bf16"}), ("int8", {"group": 64}), ("topk", {"fraction": 0.1})):
    codec = chain_of(CodecPlan([CodecSpec(name, args)])).lossy
    views_of(codec.decode(codec.encode(body), layout), 0, layout.nbytes, Scratch())
print("torch" in sys.modules)
"""


def test_torch_is_not_imported_for_what_numpy_has_or_bfloat16():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "False\n"
