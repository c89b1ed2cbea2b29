"""The page on the bench: its lists of codecs and of keys are those of the code."""

import re
from dataclasses import fields
from pathlib import Path

import pytest
from bench_plans import make_codec_plan

from flstream.bench.codec_cases import STANDARD, parse_codecs
from flstream.bench.codec_compare import CodecMeasurement, CodecResult
from flstream.bench.codec_plan import MOST_SECONDS
from flstream.bench.document import codec_document
from flstream.bench.exchange import Need
from flstream.bench.measurement import Ratios
from flstream.simulation.forecasting.fitting import Available

PAGE = (Path(__file__).parents[2] / "docs" / "bench.md").read_text()
SPANS = re.findall(r"`([^`\n]+)`", PAGE)
WORDS = {*SPANS, *(part for span in SPANS for part in span.split("."))}


def test_all_is_what_the_page_says():
    assert ",".join(STANDARD) in WORDS
    assert f"{MOST_SECONDS:g} s" in PAGE


def test_every_example_of_an_entry_can_be_given():
    entries = [word for word in SPANS if re.match(r"[a-z0-9]+:[0-9a-z.]+", word)]
    assert len(entries) >= 6
    assert len(parse_codecs(",".join(entries))) == len(entries) + 1


@pytest.mark.parametrize("name", [field.name for field in fields(CodecMeasurement)])
def test_every_figure_is_named(name):
    assert name in WORDS


def test_every_key_of_the_document_is_named():
    plan = make_codec_plan()
    room = Available(1, 1, Path())
    results = [CodecResult(case, case.name, Need(1, 1, 1, 1), room) for case in plan.cases]
    found = codec_document(plan, results)
    assert {*found["plan"], *found["results"][0]} <= WORDS
    assert {field.name for field in fields(Ratios)} <= WORDS
