"""Plans of benches of codecs for tests."""

from flstream.bench.codec_cases import parse_codecs
from flstream.bench.codec_plan import CodecBenchPlan

MIB = 1 << 20


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
