"""The codecs of a job file: what may be listed, in which order, and what is made of it."""

import re

import pytest
from pydantic import ValidationError

from flstream.codecs.chain import BLOCK_CODECS, COMPRESSORS, STEPS, chain_of
from flstream.job import codecs as codec_sections
from flstream.job.codecs import CodecPlan, CodecSpec, CodecsSection
from flstream.job.explain import explain
from flstream.job.problems import RefusedValueError

OWN = '''
import numpy as np

class Halves:
    """Numbers of 16 bits, divided by a scale."""

    def __init__(self, scale=1.0):
        self.scale = scale

    def nbytes(self, dtype, count):
        return 2 * count

    def encode(self, numbers, place):
        return (numbers / self.scale).astype(np.float16).tobytes()

    def decode(self, data, place):
        return np.frombuffer(data, np.float16).astype(np.float32) * self.scale


class Sparse(Halves):
    for_updates = True


class NoCodec:
    pass


class Failing:
    def __init__(self):
        raise RuntimeError("no device")
'''


def of(kind, **args):
    """A codec's section."""
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
        made = chain.lossy.codec
        assert made == BLOCK_CODECS[name](**spec.args)


def test_a_list_is_a_codec_with_a_loss_and_then_one_of_frames(parse):
    specs = parse(
        "up",
        {"type": "topk", "args": {"fraction": 0.05}},
        "shuffle",
        {"type": "zstd", "args": {"level": 3}},
    )
    assert specs[0] == CodecSpec("topk", {"fraction": 0.05})
    assert specs[2] == CodecSpec("zstd", {"level": 3})
    chain = chain_of(CodecPlan(specs, ["norm"]))
    assert chain.lossy.codec.fraction == 0.05
    assert chain.lossy.require_lossless == ("norm",)
    assert chain.frames.steps == ("shuffle",)
    assert chain.frames.compressor.level == 3
    assert not chain.frames.needs_base
    down = chain_of(CodecPlan(parse("down", "delta", "zstd")))
    assert down.lossy is None
    assert down.frames.needs_base
    assert chain_of(CodecPlan()) == (None, None)
    down = chain_of(CodecPlan(parse("down", "int8", "delta", "zstd"), of_models=True))
    assert down.lossy.codec.of_models
    assert down.frames.needs_base


@pytest.mark.parametrize(
    ("direction", "listed", "line"),
    [
        ("up", ["zst"], r'\[0\].type: given "zst"; must be cast, int8, .*; did you mean "?zstd"?'),
        (
            "up",
            [{"type": "zstd", "args": {"level": 20}}],
            r"\[0\].args.level: given 20; must be a whole number",
        ),
        (
            "up",
            [{"type": "zstd", "args": {"lvl": 2}}],
            r"\[0\].args.lvl: unknown key; did you mean level?",
        ),
        (
            "up",
            [{"type": "int8", "args": {"group": 100}}],
            "given 100; must be a power of two from 2 to 655",
        ),
        ("up", ["zstd", "int8"], r"\[1\]: given \"?int8\"?; must be an exact codec; what loses"),
        ("up", ["zstd", "delta"], r"\[0\]: given \"?zstd\"?; must be the last of the list"),
        ("up", ["delta", "delta", "zstd"], r"\[1\]: .* not in the list already"),
        ("up", ["int8", "shuffle"], r"\[1\]: .* must be followed by zstd; it makes no bytes fewer"),
        ("down", ["topk"], "must be a codec of whole models; it sends changes alone"),
        ("up", ["int8", "delta", "zstd"], "must be left out; int8 encodes differences already"),
        ("up", [{"type": "mine.py:Other"}], "the name of a Class"),
    ],
)
def test_a_list_that_cannot_be_is_refused_in_a_sentence(parse, direction, listed, line):
    with pytest.raises(RefusedValueError) as caught:
        parse(direction, *listed)
    text = "\n".join(map(str, caught.value.problems))
    assert re.search(line, text), text


def test_codecs_of_the_user_are_made_with_their_arguments(parse):
    specs = parse("up", of("mine.py:Halves", scale=2.0))
    assert specs[0].name == "mine.py:Halves"
    assert CodecPlan(specs).is_lossy
    assert chain_of(CodecPlan(specs)).lossy.codec.scale == 2.0
