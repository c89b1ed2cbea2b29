"""Keys with something for each site or process: aggregation.weights and clients.gpus."""

import pytest

from flstream.job import JobError, load_job, render_job

JOB = """
name = test, rounds = 1
clients { names = [ward, "clinic.a"] }
model { factory = "model:Net" }
train { script = client.py }
"""


@pytest.fixture
def write(tmp_path):
    (tmp_path / "client.py").write_text("")
    (tmp_path / "model.py").write_text("Net = dict\n")

    def write(more):
        (tmp_path / "job.conf").write_text(f"{JOB}\n{more}")
        return tmp_path / "job.conf"

    return write


def test_weights_and_gpus_are_read_and_written_back(write, tmp_path):
    more = 'aggregation.weights { ward = 2, "clinic.a" = 0.5 }\nclients.gpus = [0, "1, 2"]'
    job = load_job(write(more))
    assert job.aggregation.weights == {"ward": 2.0, "clinic.a": 0.5}
    assert job.clients.gpus == ["0", "1,2"]
    (tmp_path / "again.conf").write_text(render_job(job))
    assert load_job(tmp_path / "again.conf") == job


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("aggregation.weights { wart = 2 }", "did you mean ward"),
        ("aggregation.weights { ward = 0 }", "aggregation.weights.ward: given 0"),
        ("aggregation.weights { ward = much }", "a number from 1e-06 to 1e+06"),
        ("aggregation.weights { ward = 1e7 }", "aggregation.weights.ward: given"),
        ("aggregation.weights = 3", "a section with a number from"),
        ("aggregation { weights { ward = 2 }, method = median }", "counts all alike"),
        ("clients.gpus = []", "clients.gpus: given"),
        ("clients.gpus = 0", "a list of GPUs"),
        ('clients.gpus = ["0", "a b; c"]', "clients.gpus: given"),
        ("clients.gpus = [true]", "clients.gpus: given"),
    ],
)
def test_mistakes_in_them_are_named(write, more, message):
    with pytest.raises(JobError) as error:
        load_job(write(more))
    assert message in str(error.value)
