"""The code on the page about training runs, and its example of LoRA learns."""

import re
from pathlib import Path

from nightly_cases import first_and_nightly

PAGE = (Path(__file__).parents[2] / "docs" / "training.md").read_text()
SHOWN = re.findall(r"^```(?:python|hocon)\n# ([\w.]+)\n(.*?)^```$", PAGE, flags=re.M | re.S)
FILES = dict(SHOWN)
JOB = """
name = page, rounds = 2, clients {{ count = 2 }}
model {{ factory = "{model}" }}
train {{ {code} }}
"""
TORCHRUN = 'command = "torchrun --nproc_per_node=2"'
CASES = {
    "client": ("model:Net", "script = client.py", "accuracy"),
    "split": ("model:Net", "script = split.py", "accuracy"),
    "learner": ("model:Net", 'learner = "learner:Points", args { lr = 0.1 }', "accuracy"),
    "lightning": ("lightning_client:Points", "script = lightning_client.py", "loss"),
    "hf": ("hf_client:build", "script = hf_client.py, preload = [transformers]", "eval_accuracy"),
    "ranks": ("model:Net", f"script = ranks.py, {TORCHRUN}", "accuracy"),
}
# What the page says of a loop for several ranks.
RECEIVE = "    flare.receive(into=net)\n"
BROADCAST = ("for tensor in net.state_dict().values():", "dist.broadcast(tensor, src=0)")


def ranks_of(script: str) -> str:
    """Return a script for torchrun, made of one for a process by the lines that the page names."""
    assert all(f"`{line}`" in PAGE for line in BROADCAST)
    lines = "".join(f"{'    ' * depth}{line}\n" for depth, line in enumerate(BROADCAST, 1))
    begin = 'import torch.distributed as dist\ndist.init_process_group("gloo")\n'
    return begin + script.replace(RECEIVE, RECEIVE + lines) + "dist.destroy_process_group()\n"


def split_of(script: str) -> str:
    """Return a script that records its labels, by the call that the page names."""
    assert "`partition.record(labels)`" in PAGE
    record = "from flstream.client import partition\npartition.record(data[1])\n"
    return script.replace("while flare", record + "while flare")


@first_and_nightly("name", CASES, brief=5)
def test_the_code_on_the_page_runs(jobs, name):
    model, code, metric = CASES[name]
    job = JOB.format(model=model, code=code)
    client = FILES["client.py"]
    made = {"ranks.py": ranks_of(client), "split.py": split_of(client), "job.conf": job}
    run = jobs.run_files({**FILES, **made})
    assert run.summary.status == "finished", run.summary.error
    assert metric in run.summary.metrics[1]
    assert run.summary.warnings == []
    if name == "split":
        assert (run.directory.site("site-1") / "split.json").is_file()
    if name == "hf":
        [before, after] = (scores[metric] for scores in run.summary.metrics[:2])
        assert before < 0.6 < 0.8 < after


def test_the_smallest_script_runs_and_has_twelve_lines(jobs):
    name, script = SHOWN[0]
    assert name == "client.py"
    assert len([*filter(None, script.splitlines())]) <= 12
    run = jobs.run_files({**FILES, name: script})
    assert run.summary.status == "finished", run.summary.error


def test_every_file_of_the_page_is_in_a_case():
    shown = {name.removesuffix(".py") for name in FILES}
    clients = {f"{name}_client" for name in ("hf", "lightning")}
    assert shown == {"model", "client", "learner", "job.conf"} | clients
