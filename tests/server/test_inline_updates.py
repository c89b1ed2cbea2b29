"""An update that travels in its site's answer is taken as it was sent, or not at all."""

import msgspec
import pytest
import torch

from flstream.codecs.chain import UpdateForm
from flstream.errors import UpdateRefusedError
from flstream.model.memory import MemoryBody
from flstream.model.source import Scratch, views_of
from flstream.server.updates import update_in_answer
from flstream.worker.answers import inline
from flstream.worker.messages import SiteAnswer

MODEL = MemoryBody.of({"w": torch.arange(6.0), "n": torch.tensor(4), "e": torch.zeros(0)})
PART = MemoryBody.of({"w": torch.ones(6)})
OTHER = MemoryBody.of({"stray": torch.ones(6)})


def taken(sent, *, partial=False, **changed):
    """What the server has of it, after it was changed on its way."""
    answer = SiteAnswer("site-1", 1.0, {}, partial=partial)
    update = msgspec.structs.replace(inline(sent), **changed)
    return update_in_answer(answer, update, UpdateForm(MODEL))


@pytest.mark.parametrize(("sent", "partial"), [(MODEL, False), (PART, True)])
def test_what_arrives_is_what_was_sent(sent, partial):
    update = taken(sent, partial=partial)
    assert update.body.source.layout == sent.layout
    views = views_of(update.body.source, 0, sent.layout.nbytes, Scratch())
    assert b"".join(views) == b"".join(views_of(sent, 0, sent.layout.nbytes, Scratch()))
    assert update.body.cost.bytes == sent.layout.nbytes


@pytest.mark.parametrize(
    ("sent", "changed", "words"),
    [
        (MODEL, {"body": bytes(MODEL.layout.nbytes)}, "was damaged on its way"),
        (MODEL, {"body": b"short"}, "was damaged on its way"),
        (MODEL, {"header": PART.layout.plain_header[8:]}, "was damaged on its way"),
        (MODEL, {"header": b"{"}, "cannot be read"),
        (PART, {}, "does not fit the model: tensor 'n' is missing"),
        (OTHER, {}, "does not fit the model"),
    ],
)
def test_what_is_no_update_of_the_model_is_refused_by_the_name_of_its_site(sent, changed, words):
    with pytest.raises(UpdateRefusedError, match=words) as caught:
        taken(sent, **changed)
    assert caught.value.site == "site-1"
