"""Plans of benches of modes and codecs for tests."""

from flstream.bench.codec_cases import parse_codecs
from flstream.bench.codec_plan import CodecBenchPlan
from flstream.bench.plan import MODES, Plan

MIB, GIB = 1 << 20, 1 << 30


def make_plan(**changes):
    values = {
        "model_bytes": GIB,
        "clients": 2,
        "modes": MODES,
        "chunk_sizes": [2 * MIB],
        "tensors": None,
        "repeat": 1,
    }
    return Plan(**values | changes)


def make_codec_plan(**changes):
    values = {
        "model_bytes": 250 * MIB,
        "measured_bytes": 25 * MIB,
        "clients": 2,
        "network": None,
        "cases": parse_codecs("zstd,int8,topk"),
        "chunk_size": 2 * MIB,
        "tensors": None,
        "repeat": 1,
    }
    return CodecBenchPlan(**values | changes)
