"""The same bits, however the sites of a round are spread over processes."""

import pytest
from nightly_cases import first_and_nightly
from training_scripts import LARGE, LEARNER, QUIET, cohorts, noisy, noisy_learner, of_kind, results

from flstream.telemetry.events import ProcessReady, SiteUpdate


@pytest.fixture(scope="module")
def tiny(tmp_path_factory, jobs_in):
    """What comes of five sites with a process each, of a model that fits into memory."""
    return results(jobs_in(tmp_path_factory.mktemp("tiny")).run(noisy(), "clients.count=5"))


@pytest.fixture(scope="module")
def large(tmp_path_factory, jobs_in):
    """What comes of six sites with a process each, of a model above that."""
    return results(jobs_in(tmp_path_factory.mktemp("large")).run(noisy(), "clients.count=6", LARGE))


@first_and_nightly(
    "how",
    [
        ["clients.parallel=1"],
        ["clients.parallel=2"],
        ["clients.parallel=2", "streaming.mode=push"],
        ["clients.parallel=3", "streaming.mode=native"],
        ["clients.parallel=2", "streaming.tensor_download_chunk_size=48"],
        ["streaming.mode=push"],
    ],
    ids=" ".join,
    brief=2,
)
def test_updates_in_memory_give_the_bits_of_a_process_each(jobs, tiny, how):
    assert results(jobs.run(noisy(), "clients.count=5", *how)) == tiny


@pytest.mark.parametrize("how", [["clients.parallel=2"], []], ids=["workers", "own"])
def test_a_learner_gives_the_bits_of_a_loop(jobs, tiny, how):
    assert results(jobs.run(noisy_learner(), "clients.count=5", *LEARNER, *how)) == tiny


@first_and_nightly(
    "how",
    [
        # Four of six updates make a group of a sum; with three workers, all wait for one walk.
        ["clients.parallel=1"],
        ["clients.parallel=2", "streaming.mode=push"],
        ["clients.parallel=2", "streaming.mode=native"],
        ["clients.parallel=3", "streaming.tensor_download_chunk_size=16 KiB"],
        ["clients.parallel=3", "aggregation.memory_budget=1 MiB"],
    ],
    ids=" ".join,
    brief=1,
)
def test_updates_in_files_give_the_bits_of_a_process_each(jobs, large, how):
    run = jobs.run(noisy(), "clients.count=6", LARGE, *how)
    assert results(run) == large
    # What is folded is of no more use.
    assert not (run.directory.path / "updates").exists()


def test_a_learner_gives_the_bits_of_a_loop_from_files_too(jobs, large):
    run = jobs.run(noisy_learner(), "clients.count=6", LARGE, *LEARNER, "clients.parallel=2")
    assert results(run) == large


@pytest.mark.nightly
def test_ranked_updates_wait_for_one_walk_and_give_the_same_bits(jobs, large):
    ranked = ["clients.count=6", LARGE, "aggregation.method=median", "rounds=1"]
    own = results(jobs.run(noisy(), *ranked))
    assert results(jobs.run(noisy(), *ranked, "clients.parallel=2")) == own
    assert own != large


def test_a_round_samples_a_number_or_a_fraction_of_the_sites(jobs):
    sampled = ["clients.count=6", "rounds=3"]
    own = jobs.run(noisy(), *sampled, "clients.per_round=3")
    half = jobs.run(noisy(), *sampled, "clients.per_round=0.5", "clients.parallel=2")
    assert results(half) == results(own)
    assert cohorts(half) == cohorts(own)
    assert [len(cohort) for cohort in cohorts(own)] == [3, 3, 3]
    assert len({tuple(cohort) for cohort in cohorts(own)}) > 1


def test_more_workers_than_sampled_sites_do_no_harm(jobs):
    sampled = ["clients.count=6", "clients.per_round=2"]
    own = results(jobs.run(noisy(), *sampled))
    assert results(jobs.run(noisy(), *sampled, "clients.parallel=5")) == own


def test_workers_are_reused_and_not_respawned(jobs):
    run = jobs.run(noisy(), "clients.count=7", "clients.parallel=2", "rounds=4")
    results(run)
    pids = {(event.process, event.pid) for event in of_kind(run, ProcessReady)}
    assert sorted(name for name, _ in pids) == ["server", "worker-1", "worker-2"]


SEEN = """
metrics = {
    "python": random.random(),
    "numpy": np.random.rand(),
    "torch": torch.rand(()).item(),
    "seed": flare.system_info()["task_seed"] / 2**63,
}
"""


def test_each_site_and_round_has_streams_of_its_own(jobs):
    def seen(how):
        run = jobs.run(noisy(SEEN), "clients.count=3", "rounds=3", QUIET, how)
        results(run)
        return {(e.site, e.round): e.metrics for e in of_kind(run, SiteUpdate)}

    updates = seen("clients.parallel=3")
    assert len(updates) == 9
    for name in ("python", "numpy", "torch", "seed"):
        assert len({metrics[name] for metrics in updates.values()}) == 9
    assert seen("clients.parallel=1") == seen("clients.parallel=2") == updates
