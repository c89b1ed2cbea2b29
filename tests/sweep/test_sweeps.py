"""Sweeps: bits of single runs, resumed, retried, pruned, and told in a table."""

import csv
import json
import shutil

import pytest
from nightly_cases import first_and_nightly

from flstream.errors import UsageError
from flstream.job import JobError
from flstream.runs.run_directory import RunDirectory
from flstream.simulation.launcher import simulate
from flstream.sweep.results import (
    best_line,
    best_of_each,
    point_line,
    setting_rows,
    sweep_table,
    table_csv,
    table_json,
    write_results,
)
from flstream.sweep.running import Sweep


def digests(sweep):
    """The digest of each run's final model, by the name of its folder."""
    return {
        point.name: json.loads(sweep.directory(point).summary.read_text())["model"]["digest"]
        for point in sweep.record.points
    }


def ended(sweep):
    """The names of the runs that end when a sweep is run."""
    told = []
    sweep.run(on_progress=told.append)
    return [progress.ended.name for progress in told if progress.ended is not None]


def alone(sweeps, name, *overrides):
    """The digest of a single run."""
    job = sweeps.job(*overrides)
    run = RunDirectory.create(job.name, sweeps.folder / name)
    with run.in_use():
        return simulate(job, run).model.digest


@first_and_nightly("seeds", [1, 9])
def test_each_run_has_the_bits_of_a_run_by_itself(sweeps, seeds):
    sweep = sweeps.sweep("train.args.lr=1,2,3", seeds=seeds)
    assert not sweep.run(parallel=2)
    assert len(digests(sweep)) == 3 * seeds
    for point in sweep.record.points:
        overrides = [f"train.args.lr={point.values['train.args.lr']}", f"seed={point.seed}"]
        assert digests(sweep)[point.name] == alone(sweeps, f"alone-{point.name}", *overrides)


def test_the_table_has_mean_and_spread_over_seeds_and_marks_the_best(sweeps):
    sweep = sweeps.sweep("train.args.lr=1,3", "rounds=2", seeds=2)
    sweep.run(parallel=2)
    page = write_results(sweep.folder, sweep.record)
    rows = setting_rows(sweep.record)
    assert [row["is_best"] for row in rows] == [False, True]
    assert [row["mean"] for row in rows] == pytest.approx([0.101, 0.301])
    assert all(row["spread"] == pytest.approx(0) and row["runs"] == 2 for row in rows)
    with (sweep.folder / "table.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [line["train.args.lr"] for line in lines] == ["1", "3"]
    assert float(lines[1]["mean"]) == pytest.approx(0.301)
    assert lines[1]["is_best"] == "1"
    content = json.loads((sweep.folder / "table.json").read_text())
    assert content["best"] == {"train.args.lr": "3", "rounds": "2"}
    assert len(content["runs"]) == 4
    assert "lr=3,rounds=2,seed=6" in page.read_text()
    assert any("3 *" in line for line in sweep_table(sweep.record).lines(80))


def test_the_same_sweep_again_trains_nobody_who_is_done(sweeps):
    first = sweeps.sweep("train.args.lr=1,2")
    first.run()
    shutil.rmtree(first.directory(first.record.points[1]).path)
    journal = first.directory(first.record.points[0]).events
    before = journal.read_text()
    # Somebody had removed the folder of that run.
    assert ended(sweeps.sweep("train.args.lr=1,2")) == ["lr=2,seed=5"]
    assert journal.read_text() == before


def test_a_run_that_was_stopped_resumes_where_it_was(sweeps):
    part = sweeps.sweep("train.args.lr=2", into="part")
    # As a sweep that was killed leaves it: one run cut off after its first round.
    job = sweeps.job("train.args.lr=2", "rounds=1")
    run = RunDirectory.create(job.name, sweeps.folder / "part" / "lr=2,seed=5")
    with run.in_use():
        simulate(job, run)
    part.record.points[0].status = "stopped"
    part.record.write(sweeps.folder / "part" / "sweep.json")
    part = sweeps.sweep("train.args.lr=2", into="part")
    part.run()
    assert digests(part) == {"lr=2,seed=5": alone(sweeps, "whole", "train.args.lr=2")}
    assert '"run_resumed"' in part.directory(part.record.points[0]).events.read_text()


def test_more_seeds_go_on_with_those_that_are_there(sweeps):
    sweeps.sweep("train.args.lr=1", seeds=1).run()
    sweeps.sweep("train.args.lr=1", seeds=2).run()
    more = sweeps.sweep("train.args.lr=1", seeds=3)
    assert ended(more) == ["lr=1,seed=7"]
    assert setting_rows(more.record)[0]["runs"] == 3


def test_points_are_known_by_their_values_and_a_name_is_of_one_alone(sweeps):
    path = sweeps.folder / "sweep" / "sweep.json"
    path.parent.mkdir()
    first = sweeps.sweep("train.args.note=/data/b", "train.args.lr=1")
    first.record.points[0].status = "finished"
    first.record.write(path)
    more = sweeps.sweep("train.args.note=data b,/data/b", "train.args.lr=1")
    points = {point.values["train.args.note"]: point for point in more.record.points}
    known, new = points["/data/b"], points["data b"]
    assert (known.name, known.status) == (first.record.points[0].name, "finished")
    assert (new.name, new.status) == (f"{known.name},2", "waiting")
    more.record.write(path)
    again = sweeps.sweep("train.args.note=data b,/data/b", "train.args.lr=1")
    assert again.record.points == more.record.points


def test_tuples_from_python_are_of_the_setting_that_was_read_again(sweeps):
    def sweep(seeds):
        def job_of(point):
            sizes = list(point.values.get("train.args.sizes", ()))
            return sweeps.job(f"train.args.lr={sum(sizes) + len(sizes)}", f"seed={point.seed or 5}")

        axes = {"train.args.sizes": [(1, 2), (3,)]}
        return Sweep(sweeps.folder / "sweep", job_of, axes, seeds)

    first = sweep(1)
    first.folder.mkdir()
    first.record.write(first.folder / "sweep.json")
    assert [len(points) for points in sweep(2).record.settings] == [2, 2]


def test_a_run_that_fails_is_named_and_tried_again(sweeps):
    (sweeps.folder / "broken").touch()
    sweep = sweeps.sweep("train.args.lr=2,3")
    sweep.run()
    statuses = {point.name: point.status for point in sweep.record.points}
    assert statuses == {"lr=2,seed=5": "failed", "lr=3,seed=5": "finished"}
    assert "the disk of this site is broken" in sweep.record.points[0].error
    assert setting_rows(sweep.record)[0]["mean"] is None
    (sweeps.folder / "broken").unlink()
    again = sweeps.sweep("train.args.lr=2,3")
    again.run()
    assert {point.status for point in again.record.points} == {"finished"}


def test_a_failed_run_begins_anew_once_its_code_is_mended(sweeps):
    client = sweeps.folder / "client.py"
    sound = client.read_text()
    client.write_text(sound.replace("flare.init()", "flare.init(), 1 / (args.lr - 2)"))
    sweep = sweeps.sweep("train.args.lr=1,2")
    sweep.run()
    assert [point.status for point in sweep.record.points] == ["finished", "failed"]
    client.write_text(sound)
    again = sweeps.sweep("train.args.lr=1,2")
    again.run()
    assert [point.status for point in again.record.points] == ["finished", "finished"]
    assert (again.folder / ".failed" / "lr=2,seed=5-1" / "summary.json").exists()


def test_progress_counts_the_runs_that_are_over_and_those_of_a_rung(sweeps):
    (sweeps.folder / "broken").touch()
    told, sweep = [], sweeps.sweep("train.args.lr=2,3,1")
    sweep.run(on_progress=told.append)
    places = [(each.done, each.total) for each in told if each.ended is not None]
    assert places == [(1, 3), (2, 3), (3, 3)]
    assert told[0].running == ["lr=2,seed=5"]
    assert any(row["is_best"] for row in setting_rows(sweep.record))
    sweep.record.points[1].status = "stopped"
    assert not any(row["is_best"] for row in setting_rows(sweep.record))
    (sweeps.folder / "broken").unlink()
    told.clear()
    sweeps.sweep("train.args.lr=2,3,1").run(on_progress=told.append)
    assert [(each.done, each.total) for each in told if each.ended is not None] == [(3, 3)]
    told.clear()
    pruned = sweeps.sweep("train.args.lr=1,2", "rounds=2", prune=True, into="pruned")
    pruned.run(on_progress=told.append)
    places = [(each.done, each.total) for each in told if each.ended is not None]
    assert places == [(1, 2), (2, 2), (1, 1)]


@pytest.mark.parametrize(
    ("scores", "words"),
    [((0.5, 0.51, 0.9, 0.91), "no other"), ((0.5, 0.6, 0.52, 0.58), "1 other is within")],
)
def test_a_line_says_how_clearly_the_best_setting_is_that(sweeps, scores, words):
    record = sweeps.sweep("train.args.lr=1,2", seeds=2).record
    assert best_line(record) == ""
    for point, score in zip(record.points, scores, strict=True):
        point.status, point.score = "finished", score
    assert words in best_line(record)


@pytest.mark.parametrize(("seeds", "prune"), [(1, False), (1, True), (3, False)])
def test_more_seeds_are_advised_where_there_is_one_and_points_may_be_added(sweeps, seeds, prune):
    record = sweeps.sweep("train.args.lr=1,2", seeds=seeds, prune=prune).record
    for point in record.points:
        point.status = "finished" if point.seed == 5 else "failed"
        point.score = 0.5 if point.seed == 5 else None
    record.points[0].score = 0.6
    assert best_line(record).startswith("* has the best mean")
    assert ("--seeds 3" in best_line(record)) == (seeds == 1 and not prune)
    record.points[0].score = 0.5
    assert best_line(record).startswith("* has the best mean, as one other has")


def test_pruning_keeps_the_better_half_for_twice_the_rounds_with_the_bits_of_a_whole_run(sweeps):
    job = sweeps.folder / "job.conf"
    job.write_text(job.read_text().replace("lr = 1.0", "lr = 1.0, bonus = ${rounds}"))
    sweep = sweeps.sweep("train.args.lr=1,4,2,3", "rounds=4", prune=True)
    sweep.run(parallel=2)
    left = {point.name: (point.status, point.rounds) for point in sweep.record.points}
    assert left == {
        "lr=1,rounds=4,seed=5": ("pruned", 1),
        "lr=4,rounds=4,seed=5": ("finished", 4),
        "lr=2,rounds=4,seed=5": ("pruned", 1),
        "lr=3,rounds=4,seed=5": ("pruned", 2),
    }
    assert digests(sweep)["lr=4,rounds=4,seed=5"] == alone(
        sweeps, "alone", "train.args.lr=4", "rounds=4"
    )
    again = sweeps.sweep("train.args.lr=1,4,2,3", "rounds=4", prune=True)
    assert ended(again) == []
    assert next(row["values"] for row in setting_rows(again.record) if row["is_best"]) == {
        "train.args.lr": "4",
        "rounds": "4",
    }


def test_an_argument_that_the_job_does_not_have_is_named(sweeps):
    assert (
        "no train.args.lrr; did you mean train.args.lr?"
        in sweeps.sweep("train.args.lrr=1").notes[0]
    )
    assert sweeps.sweep("train.args.lr=1", "rounds=1").notes == []


def test_mistakes_of_any_point_come_before_a_run_begins(sweeps):
    with pytest.raises(JobError, match=r"clients\.count"):
        sweeps.sweep("clients.count=2,none")
    with pytest.raises(JobError, match=r"train\.args|learning"):
        sweeps.sweep("train.learning=1")
    with pytest.raises(JobError, match=r"type=scaffold,method=median(.|\n)*set it to mean"):
        sweeps.sweep("workflow.type=fedavg,scaffold", "aggregation.method=mean,median")
    assert not (sweeps.folder / "sweep").exists()


def test_a_folder_of_something_else_is_left_alone(sweeps):
    (sweeps.folder / "sweep").mkdir()
    (sweeps.folder / "sweep" / "thesis.tex").write_text("mine")
    with pytest.raises(UsageError, match=r"no sweep\.json"):
        sweeps.sweep("train.args.lr=1")


@pytest.mark.parametrize(
    ("was_pruned", "axis", "prune"),
    [(False, "train.args.lr=1,2", True), (True, "train.args.lr=1", True)],
)
def test_another_sweep_in_the_folder_is_refused(sweeps, was_pruned, axis, prune):
    sweep = sweeps.sweep("train.args.lr=1,2", prune=was_pruned)
    sweep.folder.mkdir()
    sweep.record.write(sweep.folder / "sweep.json")
    with pytest.raises(UsageError, match="--prune"):
        sweeps.sweep(axis, prune=prune)


def test_a_sweep_of_fewer_values_keeps_the_runs_of_the_others_for_later(sweeps):
    sweeps.sweep("train.args.lr=1,2").run()
    fewer = sweeps.sweep("train.args.lr=2,3")
    assert "of values that are not asked for, 1 run in the folder" in " ".join(fewer.notes)
    assert ended(fewer) == ["lr=3,seed=5"]
    assert [row["values"]["train.args.lr"] for row in setting_rows(fewer.record)] == ["2", "3"]
    all_again = sweeps.sweep("train.args.lr=1,2,3")
    assert ended(all_again) == []
    assert "3 of the runs are over already" in all_again.notes


def test_results_of_other_settings_are_never_taken_for_those_of_this_sweep(sweeps):
    sweeps.sweep("train.args.lr=1").run()
    job = sweeps.folder / "job.conf"
    text = job.read_text()
    job.write_text(text.replace("lr = 1.0", "lr = 1.0, bonus = 0.5"))
    assert job.read_text() != text
    with pytest.raises(UsageError, match=r"lr=1,seed=5 was made by another job: train.args.bonus"):
        sweeps.sweep("train.args.lr=1")


def test_runs_of_other_code_are_named_and_never_gone_on_with(sweeps):
    sweeps.sweep("train.args.lr=1").run()
    client = sweeps.folder / "client.py"
    client.write_text(client.read_text() + "# mended\n")
    [_, note] = sweeps.sweep("train.args.lr=1").notes
    assert "lr=1,seed=5: client.py was changed" in note
    job = sweeps.folder / "job.conf"
    job.write_text(job.read_text().replace("rounds = 2", "rounds = 3"))
    with pytest.raises(UsageError, match=r"lr=1,seed=5 was made by another job: client\.py was ch"):
        sweeps.sweep("train.args.lr=1")


def test_a_run_that_was_cut_off_is_kept_from_another_job(sweeps):
    first = sweeps.sweep("train.args.lr=1")
    first.run()
    [point] = first.record.points
    # As kill -9 leaves it in its first sitting.
    first.directory(point).summary.unlink()
    point.status = "waiting"
    first.record.write(first.folder / "sweep.json")
    job = sweeps.folder / "job.conf"
    job.write_text(job.read_text().replace("lr = 1.0", "lr = 1.0, bonus = 0.5"))
    with pytest.raises(UsageError, match="was made by another job"):
        sweeps.sweep("train.args.lr=1")
    assert first.directory(point).events.exists()


def test_the_best_other_values_of_each_method_are_told(sweeps):
    record = sweeps.sweep("train.args.lr=1,2", variants=["workflow.type=cyclic", ""]).record
    assert best_of_each(record) == []
    for point, score in zip(record.points, (0.4, 0.2, 0.3, 0.5), strict=True):
        point.status, point.score = "finished", score
    cyclic, fedavg = best_of_each(record)
    assert cyclic == "best of type=cyclic: lr=1 (accuracy 0.4000)"
    assert fedavg == "best of type=fedavg: lr=2 (accuracy 0.5000)"


def test_a_folder_that_is_no_run_is_named_before_anything_begins(sweeps):
    folder = sweeps.folder / "sweep" / "lr=2,seed=5"
    sweeps.sweep("train.args.lr=1").run()
    folder.mkdir()
    (folder / "notes.txt").touch()
    with pytest.raises(UsageError, match=r"lr=2,seed=5 is not a run directory.*remove it, and"):
        sweeps.sweep("train.args.lr=1,2")


def test_settings_that_are_the_same_are_refused(sweeps):
    with pytest.raises(UsageError, match="are the same job"):
        sweeps.sweep("train.args.lr=1.5,1.50")
    with pytest.raises(UsageError, match="the same number of rounds"):
        sweeps.sweep("rounds=1,2", prune=True)


def test_a_mean_is_of_runs_that_are_over(sweeps):
    record = sweeps.sweep("train.args.lr=1,2", seeds=2).record
    ends = [("finished", 0.4), ("stopped", 0.2), ("failed", 0.9), ("finished", 0.3)]
    for point, end in zip(record.points, ends, strict=True):
        point.status, point.score = end
    first, second = setting_rows(record)
    assert (first["runs"], first["mean"], second["runs"], second["mean"]) == (1, 0.4, 1, 0.3)
    record.points[1].status = "finished"
    assert "(left out: 1 setting with a failed run)" in best_line(record)


def test_the_page_names_what_the_sweep_varies(sweeps):
    sweep = sweeps.sweep(variants=["workflow.type=cyclic,train.args.bonus=0.1", ""], seeds=2)
    sweep.run(parallel=2)
    page = write_results(sweep.folder, sweep.record).read_text()
    assert ">type=cyclic<" in page
    assert ">type=fedavg<" in page


def test_variants_of_several_sections_are_one_table(sweeps):
    variants = ["workflow.type=scaffold", "aggregation.method=median,train.args.lr=2", ""]
    sweep = sweeps.sweep("rounds=1", variants=variants)
    for point in sweep.record.points:
        point.status, point.score = "finished", 0.5
    lines = [line.split() for line in sweep_table(sweep.record).lines(80)]
    assert lines[0][:4] == ["type", "method", "lr", "rounds"]
    assert [line[:3] for line in lines[1:]] == [
        ["scaffold", "*", "mean"],
        ["fedavg", "median", "2"],
        ["fedavg", "mean", "1.0"],
    ]
    assert table_csv(sweep.record).splitlines()[2].startswith("fedavg,median,2,1,finished")
    with pytest.raises(UsageError, match=r"rounds=1,seed=5 and type=fedavg,rounds=1,seed=5 are th"):
        sweeps.sweep("rounds=1", variants=["", "workflow.type=fedavg"])


def test_a_damaged_record_of_a_sweep_is_refused(sweeps):
    sweep = sweeps.sweep("train.args.lr=1,2")
    sweep.folder.mkdir()
    (sweep.folder / "sweep.json").write_text('{"job": ')
    with pytest.raises(UsageError, match=r"sweep\.json cannot be read"):
        sweeps.sweep("train.args.lr=1,2")


def test_on_the_virtual_clock_the_table_has_the_mean_of_simulated_times(sweeps):
    sweep = sweeps.sweep("train.args.lr=1", "time.clock=wall,virtual", seeds=2)
    sweep.run(parallel=2)
    wall, virtual = setting_rows(sweep.record)
    seconds = [point.simulated_seconds for point in sweep.record.points]
    assert wall["simulated_seconds"] is None
    assert virtual["simulated_seconds"] == pytest.approx(sum(seconds[2:]) / 2)
    assert seconds[:2] == [None, None]
    lines = sweep_table(sweep.record).lines(100)
    assert lines[0].split()[-1] == "simulated"
    assert "simulated" in point_line(sweep.record, sweep.record.points[2])
    content = json.loads(table_json(sweep.record))
    assert [run["simulated_seconds"] for run in content["runs"]] == seconds
