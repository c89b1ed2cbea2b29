"""Updates as a codec encoded them: what does not fit is refused by its site's name."""

import numpy as np
import pytest
from support import tensor

from flstream.aggregation.update import CollectedUpdate, Reading
from flstream.aggregation.update_body import LocalBody
from flstream.codecs.chain import CodecChain, UpdateForm, chain_of
from flstream.errors import UpdateRefusedError
from flstream.job.codecs import CodecPlan, CodecSection
from flstream.model.layout import Layout
from flstream.model.memory import BufferSource, MemoryBody
from flstream.model.source import Scratch

EMBED = tensor("F32", (300, 100))
MODEL = MemoryBody.of({"embed": EMBED, "head": EMBED, "x": tensor("F32", (400,))})
INT8 = chain_of(CodecPlan([CodecSection(type="int8", args={"group": 64})]))
FORM = UpdateForm(MODEL, INT8)


def read(sent, params_type):
    """Read an update of site-1 as a fold does."""
    update = CollectedUpdate("site-1", LocalBody(sent), FORM, 1.0, params_type)
    Reading(update, MODEL.layout, 1 << 20).read(0, MODEL.layout.nbytes, Scratch())


def test_what_was_not_encoded_does_not_fit():
    with pytest.raises(UpdateRefusedError, match=r"site-1 does not fit the model: .*'embed'"):
        FORM.expect_fit("site-1", MODEL.layout, partial=False)
    UpdateForm(MODEL, CodecChain()).expect_fit("site-1", MODEL.layout, partial=False)


@pytest.mark.parametrize("partial", [True, False])
def test_a_further_name_of_a_tensor_that_is_not_there_is_refused_by_the_site_s_name(partial):
    """A peer may state any layout: ``head`` as another name of ``x``, without ``embed``."""
    layout = Layout.of([("x", "U32", (120,))], {"head": "x"})
    with pytest.raises(UpdateRefusedError, match="site-1 does not fit the model"):
        FORM.expect_fit("site-1", layout, partial=partial)
    with pytest.raises(UpdateRefusedError, match="the update of site-1 cannot be decoded"):
        read(BufferSource(layout, memoryview(bytearray(layout.nbytes))), "FULL")


def test_bytes_that_the_codec_never_writes_are_refused_by_the_site_s_name():
    layout = INT8.lossy.encoded(MODEL.layout)
    body = np.full(layout.nbytes, 255, np.uint8)  # scales that are NaN
    with pytest.raises(UpdateRefusedError, match=r"site-1 cannot be decoded: .*'embed'"):
        read(BufferSource(layout, body.data), "DIFF")
