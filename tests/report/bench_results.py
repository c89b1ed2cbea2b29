"""Results of a bench, made up: round numbers, so that what is printed can be worked out by hand."""

from pathlib import Path

from flstream.bench.compare import Result
from flstream.bench.exchange import Need
from flstream.bench.limits import MachineLimits
from flstream.bench.measurement import Measurement, Trace
from flstream.bench.plan import MODES, Plan
from flstream.simulation.forecasting.fitting import Available

MIB, GIB = 1 << 20, 1 << 30
LIMITS = MachineLimits(memcpy=8 * GIB, pipe={2 * MIB: 2 * GIB}, disk=0.5 * GIB)


def make_plan(**changes):
    values = {
        "model_bytes": GIB,
        "clients": 2,
        "modes": MODES,
        "chunk_sizes": [2 * MIB],
        "tensors": None,
        "repeat": 3,
    }
    return Plan(**values | changes)


def make_measurement(mode):
    native = mode == "native"
    return Measurement(
        download=20.0 if native else 2.0,
        upload_and_fold=10.0 if native else 4.0,
        checkpoint=1.0,
        train=0.1,
        requests=4 if native else 60,
        server_idle_rss=160 * MIB,
        server_idle_uss=6 * MIB,
        server_peak_rss=3 * GIB if native else 16 * MIB,
        server_peak_uss=3 * GIB if native else 15 * MIB,
        client_idle_rss=160 * MIB,
        client_idle_uss=6 * MIB,
        client_peak_rss=2 * GIB if native else 6 * MIB if mode == "file" else GIB,
        client_peak_uss=2 * GIB if native else 6 * MIB if mode == "file" else GIB - MIB,
        total_peak_pss=9 * GIB if native else 3 * GIB,
        wall_seconds=30.0,
    )


def make_result(plan, case, *, fits=True):
    native = case.mode == "native"
    need = Need(
        memory=(41 if native else 4) * GIB,
        server=9 * GIB if native else 64 * MIB,
        client=2 * GIB,
        disk=5 * GIB,
    )
    result = Result(case, plan.label(case), need, Available(21 * GIB, 90 * GIB, Path("runs")))
    if fits:
        result.available = Available(64 * GIB, 90 * GIB, Path("runs"))
        result.runs += [make_measurement(case.mode)] * plan.repeat
        peak = int(result.runs[0].server_peak_rss)
        result.trace = Trace([(0.0, 0), (1.0, peak), (2.0, 0)], [(0.0, 0), (1.5, GIB)])
    return result


def make_results(plan, *, native_fits=True):
    return [
        make_result(plan, case, fits=native_fits or case.mode != "native") for case in plan.cases
    ]
