"""Writers named after NVFlare's: what they are given is logged, from the first line of a script."""

import pytest
import torch

from flstream.client.tracking import MLflowWriter, SummaryWriter, WandBWriter
from flstream.worker.messages import Failed, Logged

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
    with script(made) as serving:
        serving.server.evaluate({"w": torch.zeros(2)}, "site-1", round_number=4)
        assert serving.server.failures() == []
        assert [each for each in serving.server.heard if isinstance(each, Logged)] == due


@pytest.mark.parametrize("kind", [SummaryWriter, MLflowWriter, WandBWriter])
def test_a_writer_can_be_made_where_there_is_no_session(kind):
    writer = kind("somewhere", flush_secs=3)
    writer.flush()
    writer.close()


def test_values_before_the_first_task_are_of_round_0_and_a_wrong_one_fails_the_site(script):
    text = """
        import flstream.client as flare
        from flstream.client.tracking import SummaryWriter

        writer = SummaryWriter()
        writer.add_scalar("before", 1.0)
        flare.init()
        writer.add_scalar("after", 2.0)
        flare.receive()
        writer.add_scalar("loss", [1.0])
    """
    with script(text, site="site-1") as serving:
        serving.server.ask("evaluate", {"w": torch.zeros(2)}, "site-1")
        assert "ClientError: log('loss') was given a list" in serving.server.hear(Failed).reason
        logged = [each for each in serving.server.heard if isinstance(each, Logged)]
    assert logged == [
        Logged(0, "site-1", key, value) for key, value in (("before", 1.0), ("after", 2.0))
    ]
