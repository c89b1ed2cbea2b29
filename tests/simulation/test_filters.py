"""Filters in real runs: what leaves a site, and the same bits for any workers, chunks and kills."""

import os
import signal

import pytest
import torch
from nightly_cases import first_and_nightly
from safetensors.torch import load_file
from training_scripts import LARGE, LEARNER, QUIET, noisy, noisy_learner, results

from flstream.telemetry.events import ProcessReady, SitePhaseChanged

UP = """filters.up=[
  { type = percentile_privacy, percentile = 30, gamma = 2.5 }
  { type = svt_privacy, fraction = 0.4, epsilon = 50, noise_var = 30, gamma = 0.8, tau = 0.1 }
  { type = exclude_vars, exclude_vars = ["b"] }
  { type = gaussian, sigma = 0.01 }
  { type = "mine.py:Halve", factor = 0.5 }
]"""
DOWN = """filters.down=[
  { type = gaussian, sigma = 0.05 }
  { type = exclude_vars, exclude_vars = "^steps$" }
  { type = percentile_privacy, percentile = 5, gamma = 3 }
  { type = svt_privacy, fraction = 0.9, epsilon = 1e4, noise_var = 1e4, gamma = 3, tau = 0.1 }
]"""
MINE = """
class Halve:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, values, block):
        return values * self.factor + 1e-3 * block.uniforms()
"""
FOUR = ["clients.count=4", UP, DOWN]


def chunks(size):
    return f"streaming.tensor_download_chunk_size={size}"


def run(jobs, *how, **more):
    (jobs.folder / "mine.py").write_text(MINE)
    return jobs.run(noisy(), *FOUR, *how, **more)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, jobs_in):
    """What comes of four sites with a worker each, for a tiny model and one kept in a file."""
    found = {}
    for name, how in (("tiny", []), ("large", [LARGE])):
        found[name] = run(jobs_in(tmp_path_factory.mktemp(name)), *how)
    return found


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("size", "how"),
    [
        ("tiny", ["clients.parallel=1", chunks("4 KiB")]),
        ("tiny", ["clients.parallel=2", "streaming.mode=push"]),
        ("large", ["clients.parallel=2", chunks("4 KiB"), "streaming.mode=push"]),
        ("large", ["streaming.mode=native"]),
    ],
)
def test_filtered_models_are_the_same_for_any_workers_and_chunks(jobs, undisturbed, size, how):
    more = [LARGE] if size == "large" else []
    assert results(run(jobs, *more, *how)) == results(undisturbed[size])


@pytest.mark.nightly
def test_an_excluded_tensor_keeps_its_value_and_so_does_one_that_sites_did_not_receive(undisturbed):
    directory = undisturbed["large"].directory
    before, after = (load_file(directory.checkpoint(number)) for number in (0, 2))
    assert torch.equal(after["b"], before["b"])
    assert torch.equal(after["steps"], before["steps"])
    assert not torch.equal(after["w"], before["w"])
    # A site has nothing in its folder beside what its code left.
    names = {path.name for path in directory.site("site-1").iterdir()}
    assert not {name for name in names if "safetensors" in name or "tmp" in name}
    # The server was offered the tensor w alone, and its numbers moved.
    up = undisturbed["large"].summary.transfer.up
    assert up.bytes == 2 * 4 * after["w"].nbytes


@pytest.mark.nightly
@first_and_nightly("parallel", [4, 2])
def test_a_killed_run_goes_on_to_the_same_filtered_bits(jobs, undisturbed, parallel):
    pids = {}

    def kill(event, sampler):
        if isinstance(event, ProcessReady):
            pids[event.process] = event.pid
        if (
            isinstance(event, SitePhaseChanged)
            and (event.round, event.site) == (2, "site-3")
            and not kill.done
        ):
            kill.done = True
            os.kill(pids["server"], signal.SIGKILL)

    kill.done = False
    how = [LARGE, f"clients.parallel={parallel}"]
    cut = run(jobs, *how, listener=kill)
    assert kill.done
    assert cut.summary.status == "failed"
    resumed = jobs.go_on(cut, noisy(), *FOUR, *how)
    assert results(resumed) == results(undisturbed["large"])


# Trains in the memory that the model was received into, so that what it was is gone.
IN_PLACE = """
import torch
import flstream.client as flare

flare.init()
own = {
    "w": torch.zeros(%d),
    "b": torch.full((3, 5), 9.0, dtype=torch.float64),
    "steps": torch.tensor(0),
}
while flare.is_running():
    model = flare.receive(into=own)
    assert (own["b"] == 9).all(), "b was received"
    assert "b" not in model.params
    kind = flare.ParamsType.%s
    if kind == "FULL":
        own["w"] += 1
        own["w"][0] += 1e-3
        own["steps"] += 1
        flare.send(flare.FLModel(params=own))
    else:
        change = torch.ones(%d)
        change[0] += 1e-3
        flare.send(flare.FLModel(params={"w": change}, params_type=kind, meta={"partial": True}))
"""


@pytest.mark.parametrize("kind", ["FULL", "DIFF"])
def test_the_change_is_filtered_also_where_code_trains_in_the_received_memory(jobs, kind):
    script = IN_PLACE % (300_000, kind, 300_000)
    up = "filters.up=[{ type = percentile_privacy, percentile = 0, gamma = 0.25 }"
    up += ", { type = exclude_vars, exclude_vars = [b] }]"
    down = "filters.down=[{ type = exclude_vars, exclude_vars = [b] }]"
    done = jobs.run(script, up, down, LARGE, QUIET)
    assert done.summary.status == "finished", done.summary.error
    before, after = (load_file(done.directory.checkpoint(number)) for number in (0, 1))
    assert torch.equal(after["w"], (before["w"].double() + 0.25).float())
    assert torch.equal(after["b"], before["b"])
    assert after["steps"] == (1 if kind == "FULL" else 0)


@pytest.mark.parametrize(
    ("does", "sentence"),
    [
        ("return values[1:]", "mine.py:Broken returned ndarray"),
        ("return values / absent", "mine.py:Broken raised NameError at tensor 'b': name 'absent'"),
        ("raise SystemExit(3)", "mine.py:Broken raised SystemExit at tensor 'b': 3; mend"),
    ],
)
def test_a_filter_that_fails_names_itself_and_the_site(jobs, does, sentence):
    (jobs.folder / "mine.py").write_text(
        f"class Broken:\n    def __call__(self, values, block):\n        {does}\n"
    )
    failed = jobs.run(noisy(), 'filters.up=["mine.py:Broken"]', QUIET)
    assert failed.summary.status == "failed"
    assert sentence in failed.summary.error


def test_a_name_that_the_model_lacks_fails_the_run_with_the_filters_key(jobs):
    failed = jobs.run(noisy(), "filters.up=[{ type = exclude_vars, exclude_vars = [nix] }]", QUIET)
    assert failed.summary.status == "failed"
    assert "filters.up[0].exclude_vars: 'nix' is no tensor's name" in failed.summary.error


@pytest.mark.nightly
def test_a_learner_is_filtered_like_a_script(jobs, undisturbed):
    (jobs.folder / "mine.py").write_text(MINE)
    done = jobs.run(noisy_learner(), *FOUR, LARGE, *LEARNER)
    assert done.summary.model.digest == undisturbed["large"].summary.model.digest
