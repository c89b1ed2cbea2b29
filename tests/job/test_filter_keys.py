"""The filters of a job file: what may stand there, how it is written out, and when it changed."""

import pickle

import pytest

from flstream.job import JobError, load_job, render_job
from flstream.job.filters import FilterSpec

JOB = """
name = f, rounds = 1, clients { count = 2 }, train { script = client.py }
model { factory = "model:build" }
"""
OWN = """
class Fine:
    def __init__(self, size=1):
        if size < 0:
            raise ValueError("size is negative")

    def __call__(self, values, block):
        return values


class Unlike:
    def __call__(self, values):
        return values


class Dull:
    pass
"""


@pytest.fixture
def load(tmp_path):
    def load(text):
        (tmp_path / "client.py").write_text("import flstream.client as flare\n")
        (tmp_path / "model.py").write_text("def build():\n    return {}\n")
        (tmp_path / "mine.py").write_text(OWN)
        (tmp_path / "job.conf").write_text(f"{JOB}\n{text}")
        return load_job(tmp_path / "job.conf")

    return load


def test_filters_are_names_or_sections_and_have_all_their_arguments(load, tmp_path):
    job = load(
        'filters { up = [percentile_privacy, { type = "mine.py:Fine", size = 2 }], down = ['
        "{ type = exclude_vars, exclude_vars = [a] }, svt_privacy ] }"
    )
    assert job.filters.up == [
        FilterSpec("percentile_privacy", {"percentile": 10.0, "gamma": 0.01}),
        FilterSpec(f"{tmp_path}/mine.py:Fine", {"size": 2}),
    ]
    defaults = {"fraction": 0.1, "epsilon": 0.1, "noise_var": 0.1, "gamma": 1e-5, "tau": 1e-6}
    assert job.filters.down[1] == FilterSpec("svt_privacy", defaults)
    (tmp_path / "again.conf").write_text(render_job(job))
    assert load_job(tmp_path / "again.conf") == job
    assert pickle.loads(pickle.dumps(job)) == job
    assert [key for key, _ in job.filters.by_key()][1:3] == ["filters.up[1]", "filters.down[0]"]
    assert load("").filters.up == []


@pytest.mark.parametrize(
    ("listed", "line"),
    [
        ("3", "filters.up: given 3; must be a list of filters"),
        ("[gausian]", 'filters.up[0].type: given "gausian"; must be percentile_privacy, '),
        ("[gaussian]", "filters.up[0].sigma: missing; must be a number above 0"),
        ("[{ type = gaussian, sigma = 0 }]", "filters.up[0].sigma: given 0; must be a number abo"),
        (
            "[percentile_privacy, { type = percentile_privacy, percentil = 3 }]",
            "filters.up[1].percentil: unknown key; did you mean percentile?",
        ),
        ("[{ percentile = 3 }]", "filters.up[0].type: missing; must be percentile_privacy, "),
        ("[{ type = svt_privacy, fraction = 1.5 }]", "filters.up[0].fraction: given 1.5; must be"),
        ("[exclude_vars]", "filters.up[0].exclude_vars: missing; must be a list of names"),
        (
            '[{ type = exclude_vars, exclude_vars = "(" }]',
            'filters.up[0].exclude_vars: given "("; must be a list of names of tensors, or one reg',
        ),
        ('["mine.py:Absent"]', 'filters.up[0].type: given "mine.py:Absent"; must be the name of a'),
        ('["other.py:Fine"]', 'filters.up[0].type: given "other.py:Fine"; must be percentile_pri'),
        ('["mine.py:Dull"]', "must be a class whose objects are functions of (values, block)"),
        ('["mine.py:Unlike"]', "must be a class whose objects are functions of (values, block)"),
        ('[{ type = "mine.py:Fine", size = -1 }]', "mine.py line 5 raised ValueError: size is neg"),
        (
            '[{ type = "mine.py:Fine", sise = 1 }]',
            "raised TypeError: Fine.__init__() got an",
        ),
    ],
)
def test_a_mistake_in_a_filter_is_named_by_its_key(load, listed, line):
    with pytest.raises(JobError) as caught:
        load(f"filters.up = {listed}")
    assert line in str(caught.value)
    assert len(caught.value.problems) == 1
