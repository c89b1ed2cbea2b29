"""jobs/gpt2: it learns, is tracked and exported, at any size and with an adapter."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.extras

ROOT = Path(__file__).parents[2]
FLSTREAM = [sys.executable, "-m", "flstream"]
MIB = 1 << 20
SHORT = ["--set", "train.args.max_steps=2"]
PASS_ON = """
import psutil

import flstream.client as flare

flare.init()
while flare.is_running():
    before = psutil.Process().memory_info().rss
    model = flare.receive()
    update = flare.FLModel(params=model.params)
    print("grown", psutil.Process().memory_info().rss - before, flush=True)
    flare.send(update)
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """A copy of the job's folder, where the tokenizer may be kept."""
    folder = tmp_path_factory.mktemp("job") / "gpt2"
    shutil.copytree(ROOT / "jobs" / "gpt2", folder, ignore=shutil.ignore_patterns(".*", "__py*"))
    return folder


def run(*line, cwd=None):
    done = subprocess.run(line, capture_output=True, text=True, check=False, cwd=cwd)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def simulate(job, directory, *options):
    out = run(*FLSTREAM, "simulate", str(job), "--json", "--run-dir", str(directory), *options)
    return json.loads(out)


@pytest.fixture(scope="module")
def trained(job, tmp_path_factory):
    """The run of the job as it is, and its summary."""
    directory = tmp_path_factory.mktemp("trained") / "run"
    return directory, simulate(job, directory)


def test_the_evaluation_loss_falls_over_three_rounds_and_decides_which_is_best(trained):
    _, summary = trained
    losses = [each["eval_loss"] for each in summary["metrics"]]
    assert len(losses) == summary["rounds_completed"] == 3
    assert losses[0] > losses[1] > losses[2]
    assert summary["best"] == {"round": 3, "metric": "eval_loss", "value": losses[2]}
    names = {name for each in summary["metrics"] for name in each}
    assert [name for name in names if "loss" in name] == ["eval_loss"]
    assert summary["failures"] == summary["warnings"] == []


def test_event_files_have_the_loss_of_each_site_and_of_the_global_model(trained):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    directory, summary = trained
    curves = {}
    for name in ("site-1", "site-2", "global"):
        events = EventAccumulator(str(directory / "tensorboard" / name))
        events.Reload()
        curves[name] = {tag: events.Scalars(tag) for tag in events.Tags()["scalars"]}
    for site in ("site-1", "site-2"):
        steps = [each.step for each in curves[site]["loss"]]
        assert len(steps) > 10
        assert steps == sorted(set(steps))
    (tag,) = [tag for tag in curves["global"] if tag.endswith("eval_loss")]
    found = [each.value for each in curves["global"][tag]]
    assert found == pytest.approx([each["eval_loss"] for each in summary["metrics"]])


def test_the_exported_model_opens_with_its_tokenizer_and_generates(trained, tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    directory, _ = trained
    run(*FLSTREAM, "inspect", str(directory), "--export", str(tmp_path / "out"))
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    given = tokenizer("Return the", return_tensors="pt")
    made = model.generate(**given, max_new_tokens=8, min_new_tokens=8, do_sample=False)
    assert made.shape[1] == given["input_ids"].shape[1] + 8
    assert tokenizer.decode(made[0]).startswith("Return the")


def test_the_page_of_the_report_has_the_losses_and_the_memory(trained):
    page = (trained[0] / "report.html").read_text()
    for text in ("eval_loss over rounds", "loss over steps", "Resident memory over idle"):
        assert text in page, text


def test_job_py_its_export_and_the_job_file_end_in_equal_bits(job, tmp_path):
    line = [sys.executable, str(job / "job.py"), "--n_clients", "2", "--num_rounds", "2"]
    out = run(*line, "--max_steps", "2", cwd=tmp_path)
    assert "Job Status is: finished" in out
    (made,) = (tmp_path / "runs").glob("gpt2-*")
    assert f"Result can be found in : {made}" in out
    run(*line, "--max_steps", "2", "--export", "exported", cwd=tmp_path)
    digests = {json.loads((made / "summary.json").read_text())["model"]["digest"]}
    for number, (path, options) in enumerate(
        [(tmp_path / "exported", []), (job, ["-r", "2", *SHORT])]
    ):
        digests.add(simulate(path, tmp_path / f"run-{number}", *options)["model"]["digest"])
    assert len(digests) == 1


def test_the_tokenizer_is_trained_once_however_many_processes_ask_for_it(job, tmp_path):
    script = f"""
import sys
sys.path.insert(0, {str(job)!r})
from pathlib import Path
import model
model.CACHE = Path({str(tmp_path / "cache")!r})
train = model.train_tokenizer
def counted(path):
    with open({str(tmp_path / "count")!r}, "a") as file:
        file.write("trained\\n")
    train(path)
model.train_tokenizer = counted
print(len(model.get_tokenizer()))
"""
    started = [
        subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) for _ in range(3)
    ]
    sizes = {each.communicate()[0] for each in started}
    assert len(sizes) == 1
    assert (tmp_path / "count").read_text() == "trained\n"


# PEFT asks a model of transformers by a name that this is about to drop.
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
def test_an_adapter_is_exchanged_alone_and_opens_in_peft(job, tmp_path):
    from peft import PeftConfig

    options = ["-r", "1", *SHORT, "--set", "model.args.peft=lora"]
    summary = simulate(job, tmp_path / "run", *options)
    assert summary["model"]["bytes"] < 0.03 * 2.6 * MIB
    run(*FLSTREAM, "inspect", str(tmp_path / "run"), "--export", str(tmp_path / "adapter"))
    sys.path.insert(0, str(job))
    try:
        import model
        from peft import PeftModel

        base = model.random_model("tiny", model.get_tokenizer())
        adapted = PeftModel.from_pretrained(base, tmp_path / "adapter")
    finally:
        sys.path.remove(str(job))
        for name in ("model", "corpus"):
            sys.modules.pop(name, None)
    assert PeftConfig.from_pretrained(tmp_path / "adapter").r == 8
    moved = [value for name, value in adapted.state_dict().items() if "lora_B" in name]
    assert all(bool(each.abs().sum() > 0) for each in moved)


def test_at_124m_the_adapter_takes_at_most_two_percent_of_the_bytes(job):
    traffic = []
    for options in ([], ["--set", "model.args.peft=lora"]):
        line = [*FLSTREAM, "validate", str(job), "--json", "--set", "model.args.size=124M"]
        done = subprocess.run([*line, *options], capture_output=True, text=True, check=False)
        assert done.returncode in (0, 1), done.stderr
        traffic.append(json.loads(done.stdout)["model"]["bytes"])
    full, adapter = traffic
    assert full > 124_000_000 * 4 * 0.99
    assert adapter <= 0.02 * full


@pytest.mark.skipif(os.cpu_count() == 1, reason="takes minutes on one core")
def test_at_124m_the_server_stays_within_64_mib_and_a_site_grows_by_one_model(job, tmp_path):
    (tmp_path / "pass_on.py").write_text(PASS_ON)
    settings = ["model.args.size=124M", f"train.script={tmp_path / 'pass_on.py'}"]
    settings += ["train.preload=[]", "tracking.type=null", "workflow.args.evaluate_every=0"]
    options = [word for setting in settings for word in ("--set", setting)]
    summary = simulate(job, tmp_path / "run", "-r", "1", *options)
    size, memory = summary["model"]["bytes"], summary["memory"]
    assert memory["server"]["peak_rss"] - memory["server"]["idle_rss"] <= 64 * MIB
    for site in ("site-1", "site-2"):
        (line,) = [
            line
            for line in (tmp_path / "run" / "sites" / site / "log.txt").read_text().splitlines()
            if line.startswith("grown")
        ]
        # One model, and the requests under way.
        assert int(line.split()[1]) <= size + 16 * MIB


def test_training_alone_takes_a_data_set_on_disk(job, tmp_path):
    lines = [json.dumps({"text": f"line {number} of a data set on disk"}) for number in range(40)]
    (tmp_path / "texts.jsonl").write_text("\n".join(lines))
    out = run(sys.executable, str(job / "trainer.py"), "--data", "texts.jsonl", cwd=tmp_path)
    assert "eval_loss = " in out
    line = [sys.executable, str(job / "job.py"), "--data", "texts.jsonl", "--max_steps", "1"]
    assert "Job Status is: finished" in run(*line, "--num_rounds", "1", cwd=tmp_path)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("model.args.size=small", "size = small: give tiny, 124M, 774M, or a folder"),
        ("model.args.peft=qlora", "peft = qlora: give lora"),
        ("train.args.data=none.jsonl", "none.jsonl: give a folder"),
        ("train.args.data=requirements.txt", "at least 4 rows"),
    ],
)
def test_mistakes_are_sentences(job, tmp_path, setting, message):
    line = [*FLSTREAM, "simulate", str(job), "-q", "--run-dir", str(tmp_path / "run")]
    done = subprocess.run([*line, "--set", setting], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert message in done.stderr
