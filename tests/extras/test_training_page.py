"""The code on the page about training runs."""

import re
from pathlib import Path

from nightly_cases import first_and_nightly

PAGE = (Path(__file__).parents[2] / "docs" / "training.md").read_text()
FILES = dict(re.findall(r"^```python\n# ([\w.]+)\n(.*?)^```$", PAGE, flags=re.M | re.S))
JOB = """
name = page, rounds = 2, clients {{ count = 2 }}
model {{ factory = "{model}" }}
train {{ {code} }}
"""
TORCHRUN = 'command = "torchrun --nproc_per_node=2"'
CASES = {
    "loop": ("model:Net", "script = loop.py", "loss"),
    "learner": ("model:Net", 'learner = "learner:Fits", args { lr = 0.1 }', "loss"),
    "lightning": ("lightning_client:Fits", "script = lightning_client.py", "loss"),
    "hf": ("gpt2:build", "script = hf_client.py, preload = [transformers]", "eval_loss"),
    "adapter": ("adapter:build", "script = hf_client.py", "eval_loss"),
    "split": ("model:Net", "script = split.py", "loss"),
    "ranks": ("model:Net", f"script = ranks.py, {TORCHRUN}", "loss"),
}


@first_and_nightly("name", CASES, brief=6)
def test_the_code_on_the_page_runs(jobs, name):
    model, code, metric = CASES[name]
    files = {**FILES, "job.conf": JOB.format(model=model, code=code)}
    if name == "adapter":
        files["hf_client.py"] = files["hf_client.py"].replace("from gpt2", "from adapter")
    run = jobs.run_files(files)
    assert run.summary.status == "finished", run.summary.error
    assert metric in run.summary.metrics[1]
    if name == "split":
        assert (run.directory.site("site-1") / "split.json").is_file()


def test_every_file_of_the_page_is_in_a_case():
    shared = {"model", "lightning_client", "hf_client", "gpt2"}
    assert {name.removesuffix(".py") for name in FILES} == shared | set(CASES) - {"lightning", "hf"}
