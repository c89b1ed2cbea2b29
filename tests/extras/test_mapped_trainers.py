"""Patched trainers train what is mapped, to the bits of a model that was fetched."""

import pytest
from patched_jobs import HF, HF_LOOP, LIT, LIT_LOOP, NET

# Above what comes with its layout.
WIDE = NET.replace("nn.Linear(4, 1, dtype=", "Wide(dtype=").replace(
    "class Net(",
    """class Wide(nn.Linear):
    def __init__(self, dtype):
        super().__init__(4, 1, dtype=dtype)
        self.bands = nn.Parameter(torch.linspace(-1, 1, 32768, dtype=dtype).view(8192, 4))

    def forward(self, x):
        return super().forward(x) + (x @ self.bands.t()).mean(-1, keepdim=True)


class Net(""",
)
# Says, at the end of each turn, how many of the module's tensors lie in the mapped checkpoint.
COUNTED = """
    lines = [line.split() for line in open("/proc/self/maps") if ".safetensors" in line]
    spans = [[int(end, 16) for end in line[0].split("-")] for line in lines]
    inside = [
        each for each in {module}.parameters()
        if any(start <= each.data_ptr() < stop for start, stop in spans)
    ]
    print("MAPPED", len(inside), flush=True)
"""


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(
            HF
            + "\nnet = Net()\ntrainer = trainer_of(net)\nflare.patch(trainer)\n"
            + HF_LOOP
            + COUNTED.format(module="net"),
            id="hugging face",
        ),
        pytest.param(
            LIT
            + "\ntrainer = trainer_of()\nflare.patch(trainer)\n"
            + LIT_LOOP
            + COUNTED.format(module="module"),
            id="lightning",
        ),
    ],
)
def test_a_patched_trainer_comes_to_the_same_bits_over_a_mapping(jobs, script):
    found = {}
    for mode in ("pull", "map"):
        done = jobs.run(script, "clients.count=2", f"streaming.mode={mode}", model=WIDE)
        assert done.summary.status == "finished", done.summary.error
        logs = done.directory.site_log("site-1").read_text()
        counts = [line.split()[1] for line in logs.splitlines() if line.startswith("MAPPED")]
        found[mode] = done.summary.model.digest, done.summary.metrics, counts
    assert found["pull"][:2] == found["map"][:2]
    assert set(found["pull"][2]) == {"0"}
    # The weight lies behind the one number of the bias, and so at no multiple of 64 bytes.
    assert set(found["map"][2]) == {"2"}
