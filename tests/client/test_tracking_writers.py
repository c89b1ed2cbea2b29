"""Writers named after NVFlare's: what they are given is logged, from the first line of a script."""

import pytest
import torch

from flstream.client.messages import Failed, Logged
from flstream.client.tracking import MLflowWriter, SummaryWriter, WandBWriter


def logged(script, text, **how):
    """What a script logs in an evaluation of round 4."""
    with script(text, **how) as serving:
        serving.server.evaluate({"w": torch.zeros(2)}, "site-1", round_number=4)
        assert serving.server.failures() == []
        return [each for each in serving.server.heard if isinstance(each, Logged)]


ANSWERS = """
flare.receive()
{call}
flare.send(flare.FLModel(metrics={{}}))
"""


WRITERS = {
    "SummaryWriter('runs', comment='mine')": {
        "add_scalar('loss', 0.5, global_step=7, sender='me')": [("loss", 0.5, 7)],
        "add_scalars('losses', {'train': 1, 'val': 2}, 8)": [
            ("losses/train", 1.0, 8), ("losses/val", 2.0, 8),
        ],
        "add_text('note', 'so far')": [("note", None, None, "so far")],
        "flush()": [],
        "close()": [],
    },
    "MLflowWriter()": {
        "log_param('lr', 0.1)": [("params/lr", None, None, "0.1")],
        "log_params({'layers': [1, 2]})": [("params/layers", None, None, "[1, 2]")],
        "log_metric('loss', 0.5, 7)": [("loss", 0.5, 7)],
        "log_metrics({'a': 1}, step=8)": [("a", 1.0, 8)],
        "log_text('body', 'notes.txt')": [("notes.txt", None, None, "body")],
        "set_tag('kind', 'test')": [("tags/kind", None, None, "test")],
        "set_tags({'n': 3})": [("tags/n", None, None, "3")],
    },
    "WandBWriter()": {"log({'a': 1, 'b': {'c': 2}}, step=3)": [("a", 1.0, 3), ("b/c", 2.0, 3)]},
}  # fmt: skip


@pytest.mark.parametrize("writer", WRITERS)
def test_a_writer_records_what_it_is_given(script, writer):
    lines = "\n".join(f"writer.{call}" for call in WRITERS[writer])
    head = "import flstream.client as flare\nfrom flstream.client.tracking import *\n"
    made = f"{head}writer = {writer}\nflare.init()\n{ANSWERS.format(call=lines)}"
    due = [Logged(4, "site-1", *each) for said in WRITERS[writer].values() for each in said]
    assert logged(script, made) == due


@pytest.mark.parametrize("kind", [SummaryWriter, MLflowWriter, WandBWriter])
def test_a_writer_can_be_made_where_there_is_no_session(kind):
    writer = kind("somewhere", flush_secs=3)
    writer.flush()
    writer.close()


def test_values_before_the_first_task_are_of_round_0(script):
    text = """
        import flstream.client as flare
        from flstream.client.tracking import SummaryWriter

        writer = SummaryWriter()
        writer.add_scalar("before", 1.0)
        flare.init()
        writer.add_scalar("after", 2.0)
        flare.receive()
        flare.send(flare.FLModel(metrics={}))
    """
    assert logged(script, text, site="site-1") == [
        Logged(0, "site-1", "before", 1.0),
        Logged(0, "site-1", "after", 2.0),
    ]


def test_a_value_that_cannot_be_recorded_fails_the_site(script):
    with script("""
        import flstream.client as flare
        from flstream.client.tracking import SummaryWriter

        flare.init()
        flare.receive()
        SummaryWriter().add_scalar("loss", [1.0])
    """) as serving:
        serving.server.ask("evaluate", {"w": torch.zeros(2)}, "site-1")
        assert "ClientError: log('loss') was given a list" in serving.server.hear(Failed).reason
