"""The codecs of a job file: what may be listed, in which order, and what is made of it."""

import re
from pkgutil import resolve_name

import pytest
from pydantic import ValidationError

from flstream.codecs.chain import BLOCK_CODECS, COMPRESSORS, STEPS, chain_of
from flstream.job import codecs as codec_sections
from flstream.job.codecs import CodecPlan, CodecSection, CodecsSection
from flstream.job.keys import explain
from flstream.job.problems import RefusedValueError

OWN = """
class Halves:
    def __init__(self, scale=1.0):
        self.scale = scale
"""


def of(kind, **args):
    return {"type": kind, "args": args}


@pytest.fixture
def parse(tmp_path):
    (tmp_path / "mine.py").write_text(OWN)

    def parse(direction, *listed):
        codecs = {direction: listed}
        try:
            section = CodecsSection.model_validate(codecs, context={"folder": tmp_path})
        except ValidationError as error:
            raise RefusedValueError(*explain(error, CodecsSection, codecs)) from None
        return getattr(section, direction)

    return parse


def test_every_built_in_codec_is_registered_once_and_made_of_its_defaults(parse):
    kinds = {name: section.traits.kind for name, section in codec_sections.BUILT_IN.items()}
    made = {"lossy": BLOCK_CODECS, "step": STEPS, "compressor": COMPRESSORS}
    assert kinds == {name: kind for kind, codecs in made.items() for name in codecs}
    for name in BLOCK_CODECS:
        (spec,) = parse("up", name)
        chain = chain_of(CodecPlan([spec]))
        assert chain.frames is None
        assert chain.lossy.name == name
        assert chain.lossy.for_updates == (name in ("topk", "ternary"))
        place, first = BLOCK_CODECS[name]
        made = resolve_name(f"flstream.codecs.{place}")
        assert chain.lossy.codec == made(*first, **dict(spec.args))


def test_a_list_is_a_codec_with_a_loss_and_then_one_of_frames(parse):
    specs = parse("up", of("topk", fraction=0.05), "shuffle", of("zstd", level=3))
    assert specs[0] == CodecSection(type="topk", args={"fraction": 0.05})
    assert specs[2] == CodecSection(type="zstd", args={"level": 3})
    chain = chain_of(CodecPlan(specs, ["norm"]))
    assert chain.lossy.codec.fraction == 0.05
    assert chain.lossy.require_lossless == ("norm",)
    assert chain.frames.steps == ("shuffle",)
    assert chain.frames.compressor.level == 3
    assert not chain.frames.needs_base
    down = chain_of(CodecPlan(parse("down", "delta", "zstd")))
    assert down.lossy is None
    assert down.frames.needs_base
    assert not any(chain_of(CodecPlan()))
    down = chain_of(CodecPlan(parse("down", "int8", "delta", "zstd"), of_models=True))
    assert down.lossy.codec.of_models
    assert down.frames.needs_base


@pytest.mark.parametrize(
    ("listed", "line"),
    [
        ([of("zstd", level=20)], r"\[0\].args.level: given 20; must be a whole number"),
        ([of("zstd", lvl=2)], r"\[0\].args.lvl: unknown key; did you mean level?"),
        ([of("int8", group=100)], "given 100; must be a power of two from 2 to 655"),
        (["zstd", "int8"], r"\[1\]: given \"?int8\"?; must be an exact codec; what loses"),
        (["zstd", "delta"], r"\[0\]: given \"?zstd\"?; must be the last of the list"),
        (["delta", "delta", "zstd"], r"\[1\]: .* not in the list already"),
        (["int8", "delta", "zstd"], "must be left out; int8 encodes differences already"),
        ([of("mine.py:Other")], "the name of a Class"),
    ],
)
def test_a_list_that_cannot_be_is_refused_in_a_sentence(parse, listed, line):
    with pytest.raises(RefusedValueError) as caught:
        parse("up", *listed)
    text = "\n".join(map(str, caught.value.problems))
    assert re.search(line, text), text


def test_codecs_of_the_user_are_made_with_their_arguments(parse):
    specs = parse("up", of("mine.py:Halves", scale=2.0))
    assert specs[0].name == "mine.py:Halves"
    assert CodecPlan(specs).is_lossy
    assert chain_of(CodecPlan(specs)).lossy.codec.scale == 2.0
