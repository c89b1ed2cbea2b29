"""The rows of the matrix: each way of computing a model that has bits of its own."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from flstream.telemetry.halts import POINTS

MODES = ("pull", "map", "native")
VICTIMS = ("server", "worker", "launcher", "all")


class Row(NamedTuple):
    """A job whose model depends on its settings and the seed alone.

    Attributes:
        settings: Overrides of ``job/job.conf``, as ``key=value``.
        modes: The streaming modes that it can have.
        sizes: The sizes of its model.
        points: The points that its runs come to.
        times: Whether they come there ``first`` or also ``later``.
        victims: Whose death leaves the model as it is.
    """

    settings: tuple[str, ...] = ()
    modes: tuple[str, ...] = MODES
    sizes: tuple[str, ...] = ("tiny", "middle", "large")
    points: tuple[str, ...] = tuple(POINTS)
    times: tuple[str, ...] = ("first", "later")
    victims: tuple[str, ...] = VICTIMS


def workflow(kind: str, *args: str) -> str:
    """The override that chooses a workflow."""
    return f"workflow={{type={kind}, args{{{', '.join(args)}}}}}"


def codecs(direction: str, *kinds: str, **how: tuple[str, ...]) -> Row:
    """A row with codecs in one direction."""
    return Row((f"streaming.codecs.{direction}=[{', '.join(kinds)}]",), **how)


def method(name: str, *more: str) -> Row:
    """A row with another way of combining updates, of seven sites."""
    return Row(("clients.count=7", f'aggregation.method="{name}"', *more))


def optimizer(kind: str) -> Row:
    """A row with a server optimizer."""
    return Row((f"server_optimizer={{type={kind},args{{learning_rate=0.5}}}}",))


def private(*settings: str) -> Row:
    """A row with the mean made private."""
    return Row(("privacy.type=central", "privacy.noise_multiplier=0.25", *settings))


def lora(workflows: str, *more: str) -> Row:
    """A row of LoRA factors around a base that all sites share."""
    return Row(
        (
            workflows,
            "train.script=lora.py",
            'model.factory="model.py:Factors"',
            'model.base={factory="model.py:Dense", args{width=${model.args.width}}}',
            *more,
        )
    )


OUTER = "learning_rate=0.5", "momentum=0.5"
STAGES = "workflow=[{type=fedavg}, {type=cyclic, args{order=random}}, {type=cross_site}]"
VIRTUAL = "time.clock=virtual"
SMALLER_SITE = "clients.args={site-2 {rank=1}}"
SMALL_FOLD = "aggregation.memory_budget=1 MiB"
ADAPTIVE = "privacy.clipping={type=adaptive, norm=2}"
EXACT = {"modes": ("pull",), "sizes": ("large",)}

ROWS: Mapping[str, Row] = MappingProxyType(
    {
        # Workflows.
        "fedavg": Row(),
        "fedprox": Row((workflow("fedavg", "fedprox_mu=0.5"),)),
        "cyclic": Row(
            (workflow("cyclic", "order=random_without_same_in_a_row"), "streaming.reuse=off"),
            points=tuple(point for point in POINTS if point != "fold"),
            victims=("server", "launcher", "all"),  # a site that fails is passed over
        ),
        "scaffold": Row((workflow("scaffold"),)),
        "feddyn": Row((workflow("feddyn", "feddyn_alpha=0.5"),)),
        "ditto": Row((workflow("ditto", "ditto_lambda=0.5"),)),
        "fedper": Row((workflow("fedper", 'personal=["^head"]'),)),
        "swarm": Row((workflow("swarm"),)),
        "cross_site": Row(("workflow=[{type=swarm}, {type=cross_site}]", "streaming.reuse=off")),
        "evaluate": Row(
            (workflow("evaluate"),), points=("record", "evaluation", "end"), times=("first",)
        ),
        "own workflow": Row((workflow('"own.py:odd_even"'),)),
        "buffered": Row(
            (workflow('"own.py:buffered"', "order=oldest"),),
            victims=("server", "launcher", "all"),  # a site that fails is passed over
        ),
        "diloco": Row(
            (
                "train.script=outer.py",
                workflow("diloco", "inner_steps=5, fragments=2", *OUTER),
            )
        ),
        "diloco overlapped": Row(
            (
                "train.script=outer.py",
                workflow("diloco", "inner_steps=4, fragments=2, overlap=1", *OUTER),
                "streaming.codecs={up=[int4], down=[int8], down_of=changes}",
            )
        ),
        "fedex": lora(workflow("fedex")),
        "hlora": lora(workflow("hlora"), SMALLER_SITE),
        # Its own model is a new adapter each time; the second one's shows what was stacked.
        "flora": lora("workflow=[{type=flora}, {type=fedavg}]", SMALLER_SITE, "rounds=2"),
        # On the virtual clock.
        "fedbuff": Row(
            (
                workflow("fedbuff", "buffer_size=2", "concurrency=3"),
                VIRTUAL,
                "clients.count=5",
                "server_optimizer={type=fedavgm,args{learning_rate=0.5}}",
            )
        ),
        "fedasync": Row((workflow("fedasync", "concurrency=2", "staleness=hinge"), VIRTUAL)),
        "decoupled diloco": Row(
            (
                "train.script=outer.py",
                workflow("decoupled_diloco", "inner_steps=3", "quorum=2", "grace=1 ms", *OUTER),
                VIRTUAL,
                "devices={learner {available {up_for=20 ms, down_for=5 ms}}}",
            )
        ),
        "over-selection": Row(
            (
                VIRTUAL,
                "clients.count=5",
                "clients.per_round=3",
                "stragglers={policy=over_selection, extra=1}",
            )
        ),
        "stages": Row((STAGES,)),
        "scaffold, fedavgm": Row((workflow("scaffold"), *optimizer("fedavgm").settings)),
        # Ways of training.
        "diff": Row(("train.args={diff=true}",)),
        "received": Row(
            ("train.script=received.py", "train.alias=nvflare"),
            points=tuple(point for point in POINTS if point != "evaluation"),
        ),
        "evaluator": Row(("evaluate.at=server", "evaluate.script=score.py"), times=("first",)),
        "files": Row(("train.script=files.py",)),
        "base": Row(
            (
                "train.script=base.py",
                'model.factory="model.py:Adapter"',
                'model.base={factory="model.py:Net", args{width=${model.args.width}}}',
            )
        ),
        "numpy": Row(("train.exchange_format=numpy",)),
        "learner": Row(('train.learner="learner.py:Line"', "train.script=null")),
        "local optimizer": Row(("train.optimizer_state=local",)),
        "outer steps": Row(("train.script=outer.py",)),
        "offloaded": Row(("train.optimizer_state=local", "train.args={offload=true}")),
        "sampled": Row(("clients.per_round=2", "clients.count=5", "checkpoints.keep=1")),
        "sampled by data size": Row(
            ("clients.per_round=2", "clients.count=5", "clients.sampler=by_data_size")
        ),
        "stopped": Row(('stop_when="accuracy >= 0.6"', "rounds=6", "patience=2")),
        # Ways of combining updates.
        "weights": Row(("aggregation.weights={site-1=3.0, site-3=0.5}",)),
        "excluded": Row(('aggregation.exclude=["^head", "wide"]',)),
        "clipped": Row(("aggregation.clip_norm=median",)),
        "norm_bounded_mean": method("norm_bounded_mean", "aggregation.clip_norm=0.5"),
        "median": method("median", SMALL_FOLD),
        "trimmed_mean": method("trimmed_mean", "aggregation.args.trim=0.2"),
        "krum": method("krum", SMALL_FOLD),
        "multi_krum": method("multi_krum"),
        "bulyan": method("bulyan"),
        "geometric_median": method("geometric_median"),
        "own aggregator": method("own.py:Middle"),
        # What the server makes of the mean.
        "fedavgm": optimizer("fedavgm"),
        "nesterov": optimizer("nesterov"),
        "fedadagrad": optimizer("fedadagrad"),
        "fedadam": optimizer("fedadam"),
        "fedyogi": optimizer("fedyogi"),
        "private": private(SMALL_FOLD),
        "private adaptive": private(ADAPTIVE, "clients.per_round=3"),
        # Codecs.
        "cast up": codecs("up", "cast"),
        "int8 up": codecs("up", "int8"),
        "int4 up": codecs("up", "int4"),
        "topk up": Row(("streaming.codecs.up=[{type=topk,args{fraction=0.25}}]", SMALL_FOLD)),
        "ternary up": codecs("up", "ternary", "zstd", modes=("pull",)),
        "own codec up": codecs("up", '"own.py:Sixteenths"'),
        "cast down": codecs("down", "cast"),
        "int8 down": codecs("down", "int8"),
        "int4 down": codecs("down", "int4"),
        "delta both": Row(
            ("streaming.codecs={down=[delta, shuffle, zstd], up=[delta, zstd]}",), **EXACT
        ),
        "lossy both": Row(("streaming.codecs={down=[int8, shuffle, zstd], up=[topk, zstd]}",)),
        "own compressor": codecs("down", "shuffle", '"own.py:Deflate"', **EXACT),
        # Filters.
        "percentile_privacy": Row(("filters.up=[{type=percentile_privacy,args{percentile=50}}]",)),
        "svt_privacy": Row(("filters.up=[{type=svt_privacy,args{fraction=0.5,gamma=1}}]",)),
        "exclude_vars": Row(("filters.up=[{type=exclude_vars,args{exclude_vars=[head]}}]",)),
        "gaussian": Row(("filters.up=[{type=gaussian,args{sigma=0.125}}]",)),
        "gaussian down": Row(("filters.down=[{type=gaussian,args{sigma=0.125}}]",)),
        "filters": Row(
            ("filters.up=[{type=percentile_privacy}, {type=gaussian,args{sigma=0.125}}]",)
        ),
        "own filter": Row(('filters.up=["own.py:Signs"]',)),
        # Links.
        "thin links": Row(
            ("network={up=400 Mbit, down=800 Mbit, latency=1 ms, jitter=1 ms, loss=0.01}",),
            modes=("pull", "native"),
        ),
        "links that change": Row(
            ("network={latency=1 ms, traces=trace.csv}",), modes=("pull", "native")
        ),
    }
)

SHIPPED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "learner": ("engine.type=inline",),
        "exchange": ("model.args.size=8 MiB",),
    }
)
"""Jobs of this checkout, and their overrides; one that takes longer is for the night."""

BY_PROCESSOR: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "digits": ("rounds=2",),
        "virtual": ("rounds=3", "clients.count=200", "clients.per_round=40"),
        "script": ("rounds=3",),
        "digits, whole": (),
        "virtual, whole": (),
    }
)
"""Jobs whose training is rounded by the processor's vector units, so that no table has its bits."""
