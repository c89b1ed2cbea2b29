"""Server optimisers: the papers' formulas, in plain float64, over several rounds."""

import pytest
import torch
from folding import fold, sent, step_of, update
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support import COMPLEX, FLOATS, FOLDED, as_bytes, cuts, every_kind, tensor

from flstream.aggregation.optimizers import ServerOptimizer, nesterov, optimizer_for, state_layout
from flstream.aggregation.rules import AggregationRule
from flstream.errors import CheckpointError
from flstream.job.aggregation_section import ServerOptimizerSection
from flstream.model.memory import MemoryBody
from flstream.workflows.feddyn import FedDynStep

TYPES = ("fedavgm", "nesterov", "fedadagrad", "fedadam", "fedyogi", "feddyn")
OPTIMIZER = ServerOptimizer("fedadam", 0.3, 0.9, 0.99, 1e-3)


def moved(state, by):
    """A site's training: floats move, as F64 they do so exactly."""
    return {
        name: value + by if value.is_floating_point() and value.element_size() > 1 else value
        for name, value in state.items()
    }


def run(optimizer, base, deltas, step):
    model, state = base, None
    for delta in deltas:
        updates = sent([moved(model, delta), model])
        model, state = step_of(optimizer, model, updates, state, step=step)
    return model


def reference(optimizer, values, deltas):
    """Algorithm 2 of Reddi et al., FedAvgM, and FedDyn's algorithm 1, whose alpha cancels out."""
    x, m = values.double(), 0.0
    if isinstance(optimizer, FedDynStep):
        for delta in deltas:
            m = m + delta / optimizer.sites
            x = x + delta / 2 + m
        return x
    eta, b1, b2, v = optimizer.learning_rate, optimizer.beta_1, optimizer.beta_2, optimizer.tau**2
    for delta in deltas:
        d = delta / 2  # of two sites, the other has not moved
        if optimizer.type in ("fedavgm", "nesterov"):
            m = b1 * m + d
            x = x + eta * (m if optimizer.type == "fedavgm" else d + b1 * m)
            continue
        m = b1 * m + (1 - b1) * d
        if optimizer.type == "fedadagrad":
            v = v + m**2
        elif optimizer.type == "fedadam":
            v = b2 * v + (1 - b2) * m**2
        else:
            # Where the two are equal, the last bit of either decides what comes of them.
            assume(abs(v - m**2) > 1e-9)
            v = v - (1 - b2) * m**2 * ((v > m**2) - (v < m**2))
        x = x + eta * m / (v**0.5 + optimizer.tau)
    return x


@pytest.mark.parametrize("kind", TYPES)
@given(
    learning_rate=st.floats(0.01, 2),
    beta_1=st.sampled_from([0.0, 0.5, 0.9]),
    beta_2=st.sampled_from([0.0, 0.9, 0.99]),
    tau=st.sampled_from([1e-3, 1e-1]),
    sites=st.integers(2, 9),
    deltas=st.lists(st.floats(-2, 2).filter(lambda d: abs(d) > 0.01), min_size=1, max_size=4),
    step=cuts(1400),
)
@settings(max_examples=15, deadline=None)
def test_the_model_moves_as_the_paper_says_however_it_is_cut(kind, sites, deltas, step, **rates):
    optimizer = FedDynStep(sites) if kind == "feddyn" else ServerOptimizer(kind, **rates)
    base = {"w": tensor("F64", (3, 4)), "f": tensor("F32", (9,)), "n": torch.tensor([4])}
    found = run(optimizer, base, deltas, step)
    assert found["n"] == base["n"]
    due = reference(optimizer, base["w"], deltas)
    assert torch.allclose(found["w"], due, rtol=1e-9, atol=1e-9)
    # In float32 the model and the state are rounded each round.
    due = reference(optimizer, base["f"], deltas)
    assert torch.allclose(found["f"].double(), due, rtol=1e-3, atol=1e-3)


def test_nesterov_is_torchs_sgd_along_the_outer_gradient():
    base, parameter = tensor("F64", (40,)), torch.nn.Parameter(tensor("F64", (40,)))
    sgd = torch.optim.SGD([parameter], lr=0.7, momentum=0.9, nesterov=True)
    model, state = {"w": base}, None
    for number in range(5):
        trained = [{"w": tensor("F64", (40,), 10 * number + site)} for site in range(3)]
        parameter.grad = parameter.detach() - torch.stack([t["w"] for t in trained]).mean(0)
        sgd.step()
        model, state = step_of(nesterov(0.7, 0.9), model, sent(trained), state)
        assert torch.allclose(model["w"], parameter.detach(), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("optimizer", [OPTIMIZER, ServerOptimizer("fedavgm", 1.0, 0.0, 0.9, 1.0)])
def test_integers_and_bools_take_the_mean_and_a_plain_step_of_one_is_the_mean_itself(optimizer):
    base = {"n": torch.tensor([4]), "b": torch.tensor([False]), "w": tensor("F32", (500,))}
    given = {"n": torch.tensor([8]), "b": torch.tensor([True])}
    updates = sent([{**given, "w": tensor("F32", (500,), seed)} for seed in (2, 3)])
    found, out = step_of(optimizer, base, updates)
    assert (found["n"].item(), found["b"].item()) == (8, True)
    is_mean = as_bytes(found["w"]) == as_bytes(fold(base, updates)["w"])
    assert is_mean == (out.layout.nbytes == 0) == (optimizer.type == "fedavgm")


def test_what_nobody_sends_keeps_its_value_and_its_state():
    base = {"a": torch.ones(3), "b": torch.ones(2)}
    whole = update("s", {"a": torch.zeros(3), "b": torch.zeros(2)})
    model, first = step_of(OPTIMIZER, base, [whole])
    part = update("s", {"b": torch.zeros(2)}, partial=True)
    found, second = step_of(OPTIMIZER, model, [part], first)
    assert as_bytes(found["a"]) == as_bytes(model["a"])
    assert not torch.equal(found["b"], model["b"])
    before, after = first.tensors, second.tensors
    for moment in ("momentum", "second_moment"):
        assert torch.equal(before[f"{moment}.a"], after[f"{moment}.a"])
        assert not torch.equal(before[f"{moment}.b"], after[f"{moment}.b"])


def test_only_aggregated_floats_have_a_state_and_that_of_another_optimiser_is_refused():
    momentum = ServerOptimizer("fedavgm", 0.1, 0.9, 0.99, 1e-3)
    base = {"w": torch.zeros(2)}
    _, other = step_of(momentum, base, sent([base]))
    with pytest.raises(CheckpointError, match=r"fedadam .*'second_moment.w' is missing"):
        step_of(OPTIMIZER, base, sent([base]), other)
    layout = MemoryBody.of(every_kind(FOLDED)).layout
    state = state_layout(OPTIMIZER.moments, layout, AggregationRule(exclude=["scalar", "empty"]))
    wide = {"F64": "F64", "C64": "C64"}
    assert {spec.name: spec.dtype for spec in state.tensors} == {
        f"{moment}.{code}.matrix": wide.get(code, "F32")
        for moment in ("momentum", "second_moment")
        for code in (*FLOATS, *COMPLEX)
    }


def test_the_job_files_defaults_are_the_papers_and_a_step_of_one_without_momentum_is_none():
    assert optimizer_for(ServerOptimizerSection()) is None
    plain = {"learning_rate": 1, "beta_1": 0}
    assert optimizer_for(ServerOptimizerSection(type="nesterov", args=plain)) is None
    assert nesterov(1.0, 0.5) == ServerOptimizer("nesterov", 1.0, 0.5)
    assert optimizer_for(ServerOptimizerSection(type="fedadagrad")).beta_1 == 0
    rates = {"fedavgm": 1.0, "nesterov": 0.7, "fedadam": 0.1, "fedyogi": 0.1}
    for kind, rate in rates.items():
        found = optimizer_for(ServerOptimizerSection(type=kind))
        assert found == ServerOptimizer(kind, rate, 0.9, 0.99, 1e-3)
    args = {"learning_rate": 0.5, "beta_1": 0, "beta_2": 0.5, "tau": 0.1}
    given = ServerOptimizerSection(type="fedadam", args=args)
    assert optimizer_for(given) == ServerOptimizer("fedadam", 0.5, 0.0, 0.5, 0.1)
