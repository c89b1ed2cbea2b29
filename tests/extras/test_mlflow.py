"""A run is tracked in a local store of MLflow, by the tracker's thread alone."""

import subprocess
import sys

import msgspec
import pytest
from nightly_cases import first_and_nightly

# What a store has, read in a process of its own: each run's parent, parameters, tags and metrics.
READ = """
import json, sys
from mlflow import MlflowClient

client = MlflowClient(tracking_uri=f"sqlite:///{sys.argv[1]}/mlflow/mlflow.db")
[experiment] = [e for e in client.search_experiments() if e.name != "Default"]
runs = client.search_runs([experiment.experiment_id])
names = {run.info.run_id: run.info.run_name for run in runs}
found = {"experiment": experiment.name}
for run in runs:
    tags, id = run.data.tags, run.info.run_id
    metrics = {key: client.get_metric_history(id, key) for key in run.data.metrics}
    files = client.list_artifacts(id, "text/note")
    found[run.info.run_name] = {
        "parent": names.get(tags.get("mlflow.parentRunId")),
        "status": run.info.status,
        "params": run.data.params,
        "tags": {key: each for key, each in tags.items() if not key.startswith("mlflow.")},
        "metrics": {key: [(m.step, str(m.value)) for m in each] for key, each in metrics.items()},
        "texts": {f.path: open(client.download_artifacts(id, f.path)).read() for f in files},
    }
print(json.dumps(found))
"""


def store(folder):
    command = [sys.executable, "-c", READ, str(folder)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return msgspec.json.decode(done.stdout.splitlines()[-1])


SCRIPT = """
import flstream.client as flare
from flstream.client.tracking import MLflowWriter, WandBWriter

writer, other = MLflowWriter(), WandBWriter()
writer.log_params({"lr": 0.1, "depth": 3})
flare.init()
while flare.is_running():
    model = flare.receive()
    if flare.is_evaluate():
        flare.send(flare.FLModel(metrics={"mean": 0.25}))
        continue
    number = model.current_round + 1
    writer.log_metric("loss", 1 / number, step=10 * number)
    other.log({"nested": {"rate": number}})
    writer.set_tag("stage", f"round {number}")
    writer.log_text(f"at {number}", "note")
    flare.log("odd <name>", float("nan"))
    model.params["w"] += 1
    flare.send(flare.FLModel(params=model.params, metrics={"error": 0.5}))
"""


# Those of its libraries, which are errors here.
@pytest.mark.filterwarnings("ignore")
def test_a_job_is_tracked_as_a_run_with_one_nested_for_each_site(jobs):
    run = jobs.run(SCRIPT, "tracking.type=mlflow")
    assert (run.summary.status, list(run.summary.warnings)) == ("finished", [])
    found = store(run.directory.path)
    assert found.pop("experiment") == "test"
    assert found.keys() == {"global", "site-1", "site-2"}
    assert {each["status"] for each in found.values()} == {"FINISHED"}
    assert found["global"]["parent"] is None
    metrics = found["global"]["metrics"]
    assert metrics["mean"] == [[1, "0.25"], [2, "0.25"]]
    assert metrics["train/error"] == [[1, "0.5"], [2, "0.5"]]
    metrics = found["site-2"].pop("metrics")
    assert metrics["loss"] == [[10, "1.0"], [20, "0.5"]]
    assert metrics["nested/rate"] == [[1, "1.0"], [2, "2.0"]]
    assert metrics["odd _name_"] == [[1, "nan"], [2, "nan"]]
    assert found["site-2"] == {
        "parent": "global",
        "status": "FINISHED",
        "params": {"lr": "0.1", "depth": "3"},
        "tags": {"stage": "round 2"},
        "texts": {"text/note/1.txt": "at 1", "text/note/2.txt": "at 2"},
    }


@first_and_nightly("count", [3, 2500])
def test_another_take_replaces_the_store_of_the_one_before(tmp_path, count):
    code = f"""
from pathlib import Path
from flstream.tracking.mlflow import MLflow
from flstream.tracking.tracker import TrackedRun

for value in (1.0, 2.0):
    tracker = MLflow(TrackedRun("job", Path({str(tmp_path)!r}), 1.7e9))
    for step in range({count}):
        tracker.scalars("ward", step, {{"loss": value}}, 1.7e9 + step)
    tracker.text("ward", 1, "params/lr", "0.1", 1.7e9)
    tracker.text("ward", 2, "params/lr", str(value), 1.7e9)
    tracker.close()
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    ward = store(tmp_path)["ward"]
    assert ward["metrics"]["loss"] == [[step, "2.0"] for step in range(count)]
    assert (ward["params"], ward["tags"]) == ({"lr": "0.1"}, {"lr": "2.0"})
