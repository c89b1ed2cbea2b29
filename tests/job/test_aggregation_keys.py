"""Keys of aggregation: methods, what each of them takes, and rules of one's own."""

import pytest

from flstream.job import JobError, load_job, render_job

JOB = """
name = test, rounds = 1
clients { count = 9 }
model { factory = "model:Net" }
train { script = client.py }
"""
RULE = """
class Largest:
    def __init__(self, most=1.0):
        self.most = most

    def fold(self, values, weights):
        return values.max(axis=0)


class Weighing:
    def weigh(self, gram, weights):
        return weights


class Neither:
    pass


class Short:
    def fold(self, values):
        return values[0]


class Value:
    weigh = 3


NUMBER = 3
"""


@pytest.fixture
def write(tmp_path):
    (tmp_path / "client.py").write_text("")
    (tmp_path / "model.py").write_text("Net = dict\n")
    (tmp_path / "mine.py").write_text(RULE)
    (tmp_path / "broken.py").write_text("import no_such_module\nRule = 3\n")

    def write(more):
        (tmp_path / "job.conf").write_text(f"{JOB}\naggregation {{ {more} }}")
        return tmp_path / "job.conf"

    return write


@pytest.mark.parametrize(
    ("more", "found"),
    [
        ("method = multi_krum, byzantine = 2, selected = 4", ("multi_krum", 2, 4, None)),
        ("method = bulyan, byzantine = 1", ("bulyan", 1, None, None)),
        ("method = norm_bounded_mean, clip_norm = 2", ("norm_bounded_mean", None, None, 2.0)),
        ("method = krum, clip_norm = median", ("krum", None, None, "median")),
        ('method = "mine.py:Largest", args.most = 2', ("{}/mine.py:Largest", None, None, None)),
        ('method = "mine:Weighing", weights.site-1 = 2', ("{}/mine.py:Weighing", *[None] * 3)),
    ],
)
def test_a_method_with_what_it_takes_is_read_and_written_back(write, tmp_path, more, found):
    job = load_job(write(more))
    section = job.aggregation
    method = found[0].format(tmp_path)
    assert (section.method, *found[1:]) == (
        method,
        section.byzantine,
        section.selected,
        section.clip_norm,
    )
    (tmp_path / "again.conf").write_text(render_job(job))
    assert load_job(tmp_path / "again.conf") == job


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("byzantine = 1", "aggregation.byzantine: given 1; must be null, as aggregation.method is"),
        ("method = krum, selected = 2", "aggregation.selected: given 2; must be null, as"),
        ("method = krum, byzantine = -1", "must be a whole number of at least 0"),
        (
            "method = krum, byzantine = 4",
            "aggregation.byzantine: given 4; must be at most 3, since krum needs 11 updates for 4; "
            "a round has 9 updates at most",
        ),
        ("method = bulyan, byzantine = 2", "must be at most 1, since bulyan needs 11 updates"),
        ("method = multi_krum, selected = 10", "aggregation.selected: given 10; must be at most 9"),
        ("method = norm_bounded_mean", "aggregation.clip_norm: missing; must be a number above 0,"),
        ("clip_norm = mean", "must be a number above 0, or median"),
        ("args.most = 1", "aggregation.args: given"),
        ("method = krum, weights.site-1 = 2", "left out where aggregation.method is krum"),
        ('method = "mine.py:Larges"', "did you mean Largest?"),
        ('method = "mine.py:Neither"', "Neither has neither"),
        ('method = "mine.py:Short"', "its fold takes (self, values)"),
        ('method = "mine.py:Value"', "its weigh is not a method"),
        ('method = "mine.py:NUMBER"', "it is of the type int"),
        ('method = "mine.py:Largest", args.least = 2', "what Largest(most=1.0) takes"),
        ('method = "broken.py:Rule"', "broken.py line 1 raised ModuleNotFoundError"),
        ('method = "nowhere.py:Rule"', "there is no "),
    ],
)
def test_what_a_method_cannot_take_is_refused_when_the_job_is_loaded(write, more, message):
    with pytest.raises(JobError) as caught:
        load_job(write(more))
    assert message in str(caught.value)
    assert len(caught.value.problems) == 1


def test_a_cohort_too_small_for_any_byzantine_update_is_refused_where_it_is_known(write):
    with pytest.raises(
        JobError, match=r"aggregation\.method: .* for fewer than 3 updates, such as"
    ):
        load_job(write("method = krum"), ["clients.per_round=2"])
