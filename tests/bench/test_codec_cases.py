"""The list of codecs of a command line: what it means, and what is refused."""

import re

import pytest

from flstream.bench.codec_cases import STANDARD, parse_codecs
from flstream.bench.codec_plan import CodecBenchPlan
from flstream.errors import UsageError


def names(text):
    return [case.name for case in parse_codecs(text)]


def job_of(case):
    return CodecBenchPlan(4 << 20, 4 << 20, 2, None, [case], 2 << 20, None, 1).job(case)


def test_the_exchange_without_codecs_is_first_and_each_case_there_once():
    assert names("int8, zstd,none,zstd:1 ,int8:256") == ["none", "int8", "zstd"]


def test_all_stands_for_every_codec_that_makes_bytes_fewer():
    assert names("all") == ["none", *STANDARD]
    assert names("all,topk:0.1") == ["none", *STANDARD, "topk:0.1"]


def test_a_value_is_that_of_the_codecs_only_key():
    cases = parse_codecs("topk:0.05,int8:64,cast:f16,zstd:3,ternary:1")[1:]
    args = [job_of(case).streaming.codecs.up[0].args for case in cases]
    assert args == [{"fraction": 0.05}, {"group": 64}, {"to": "f16"}, {"level": 3}, {"fraction": 1}]


@pytest.mark.parametrize(
    ("entry", "up", "down"),
    [
        ("delta+shuffle+zstd", ["delta", "shuffle", "zstd"], ["delta", "shuffle", "zstd"]),
        ("topk:0.1+shuffle+zstd", ["topk", "shuffle", "zstd"], ["shuffle", "zstd"]),
        ("int4", ["int4"], []),
        ("int8/cast", ["int8"], ["cast"]),
        ("topk+zstd/none", ["topk", "zstd"], []),
        ("none/int8+delta+zstd", [], ["int8", "delta", "zstd"]),
    ],
)
def test_exact_codecs_work_both_ways_and_those_with_a_loss_on_updates(entry, up, down):
    codecs = job_of(parse_codecs(entry)[1]).streaming.codecs
    assert [each.type for each in codecs.up] == up
    assert [each.type for each in codecs.down] == down


def test_what_leaves_numbers_out_is_known():
    found = {case.name for case in parse_codecs("all") if case.leaves_out}
    assert found == {"topk", "ternary"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("topq", "topq: there is no codec 'topq'; did you mean topk?"),
        ("warp", "there is no codec 'warp'; known are none, all, cast, int8"),
        (",", "no codec is named; write all, or zstd,"),
        ("zstd,int8+", "int8+: there is no codec ''"),
        ("none+zstd", "none stands alone"),
        ("shuffle:2+zstd", "shuffle has no value; leave out :2"),
        ("topk:5", "topk:5: must be a number above 0 and at most 1"),
        ("shuffle+zstd:99", "shuffle+zstd:99: zstd:99: must be a whole number from 1 to 19"),
        ("shuffle", "must be followed by zstd"),
        ("int8+cast", "cast: must be an exact codec"),
        ("int8+delta+zstd", "delta: must be left out; int8 encodes differences already"),
        ("int8/topk", "int8/topk: topk: must be a codec of whole models"),
        ("int8/", "there is no codec ''"),
        ("zstd+shuffle", "zstd: must be the last of the list"),
    ],
)
def test_what_is_no_list_of_codecs_is_refused_with_its_entry(text, words):
    with pytest.raises(UsageError, match=re.escape(words)) as refused:
        parse_codecs(text)
    assert str(refused.value).startswith(f"--codecs {text}: ")
