"""Exchange of a trainer's model with the server, as the patches of trainers do it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from flstream.client.fl_model import FLModel
from flstream.client.personal import personal
from flstream.client.ranks import broadcast, is_first_rank
from flstream.client.seeding import seed_everything, start_seed
from flstream.client.session import current
from flstream.errors import ClientError
from flstream.job.bodies import NUM_STEPS
from flstream.model.dtypes import torch_dtype
from flstream.model.fitted import Differences
from flstream.model.layout import Layout
from flstream.model.memory import MemoryBody
from flstream.model.modules import is_own_memory

if TYPE_CHECKING:
    import torch

    State = Mapping[str, torch.Tensor]

_META = "__fl_meta__"
_RECEIVED = "the received model"


class ModelExchange:
    """Exchange of models between a trainer and the server, a task at a time."""

    def __init__(self, *, strict: bool) -> None:
        # Score of the received model, which is sent with the update.
        self._metrics: dict[str, Any] | None = None
        self._strict = strict
        self._layout: Layout | None = None
        # Names that are exchanged, of those that the trainer has; None for all.
        self._names: set[str] | None = None
        self._answered: str | None = None

    def task(self) -> str | None:
        """Return the kind of the task that a call of the trainer belongs to.

        It is None if the run is over, or the task was answered before. A script that does not ask
        ``is_running()`` waits for its first task here.
        """
        session = current()
        if session.kind is None and self._answered is None:
            session.is_running()
        if session.kind is not None and self._answered is not None:
            self._answered, self._metrics = None, None
        return session.kind

    def begins_training(self, call: str) -> bool:
        """Return whether the trainer trains now, in a call of this name."""
        if self.task() == "train":
            return True
        current().expect_model()
        if self._answered == "train":
            raise ClientError(
                f"{call} was called again after the task was answered; ask flare.is_running() "
                "before each training"
            )
        print(f"flstream: {call} is left out: there is nothing to train in this task", flush=True)
        return False

    def load(
        self, module: torch.nn.Module, state: State, assign: Callable[[State], object]
    ) -> FLModel:
        """Receive the model of the task into a trainer's tensors, in all ranks.

        The bytes go straight into them where they have the model's names, dtypes and shapes.
        Another dtype is cast, and then there is a second copy of the model.
        """
        own = MemoryBody.of(state).layout
        is_own = is_own_memory(module, state)
        is_contiguous = all(tensor.is_contiguous() for tensor in state.values())
        in_place = False

        def place(layout: Layout) -> State | None:
            nonlocal in_place
            in_place = is_own and is_contiguous and not layout.difference(own)
            return state if in_place else None

        model = current().receive(place=place)
        assert model is not None  # the task is here
        if is_first_rank():
            personal(model.params or {})
            if model.params is None:
                raise ClientError(f"{_RECEIVED} was cleared; call flare.clear() after training")
            if in_place:
                self._layout, self._names = own, None
            else:
                self._layout = MemoryBody.of(model.params).layout
                assign(self._fitting(own, model.params))
        # A trainer's own agreement between its ranks may be over, or be yet to come. An adapter's
        # tensors that are made anew when they are asked for lie in parameters that are trained.
        trained = (tensor for tensor in module.parameters() if tensor.requires_grad)
        broadcast(state.values() if is_own else [*trained, *module.buffers()])
        return model

    def scored(self, metrics: dict[str, Any]) -> None:
        """Keep the score of the received model, which answers an evaluation."""
        self._metrics = metrics
        if self.task() == "evaluate":
            self.send({}, {})

    def send(self, state: State, meta: Mapping[str, Any]) -> None:
        """Answer a training with tensors by the server's names, other tasks with metrics.

        Rank 0 does so; in other ranks the task is over.
        """
        session, layout = current(), self._layout
        kind, metrics = session.kind, self._metrics
        params: dict[str, torch.Tensor] | None = None
        meta = dict(meta)
        if kind == "train" and is_first_rank():
            assert layout is not None
            names = state.keys() if self._names is None else self._names
            named = {name: layout.aliases.get(name, name) for name in state if name in names}
            params = {
                name: state[name].detach().to(torch_dtype(layout.by_name[own].dtype))
                for name, own in named.items()
            }
            if layout.by_name.keys() - named.values():
                meta["partial"] = True
        session.send(FLModel(params=params, metrics=metrics, meta=meta))
        self._answered, self._metrics, self._layout = kind, None, None

    def _fitting(self, own: Layout, params: Mapping[str, Any]) -> State:
        """Return the received tensors that the trainer has, as torch tensors."""
        import torch

        assert self._layout is not None
        differences = Differences.between(own, self._layout)
        if self._strict and differences:
            raise ClientError(
                f"{differences.sentence(_RECEIVED)}; let model.factory build what is trained, or "
                "patch with load_state_dict_strict=False to exchange only what both have"
            )
        apart = {*differences.missing, *differences.extra, *differences.misshapen}
        known = {**own.by_name, **{alias: own.by_name[n] for alias, n in own.aliases.items()}}
        self._names = known.keys() - apart
        fitting = {name: tensor for name, tensor in params.items() if name in self._names}
        if not fitting:
            raise ClientError(f"{differences.sentence(_RECEIVED)}; so nothing is left to train")
        for name in fitting:
            spec = self._layout.by_name[self._layout.aliases.get(name, name)]
            if not _widens(torch_dtype(known[name].dtype), torch_dtype(spec.dtype)):
                raise ClientError(
                    f"tensor {name!r} is trained in {known[name].dtype}, and {_RECEIVED} has "
                    f"{spec.dtype}, which an update would be rounded to; build both in one dtype"
                )
        return {name: torch.as_tensor(value) for name, value in fitting.items()}


def meta_of(module: object, steps: int) -> dict[str, Any]:
    """Return the meta of an update: its weight, and the trained module's additions."""
    meta = getattr(module, _META, None) or {}
    if not isinstance(meta, dict):
        raise ClientError(f"{_META} of the module is a {type(meta).__name__}; make it a dict")
    return {NUM_STEPS: steps, **meta}


def seed_setup() -> None:
    """Seed the global generators for draws before a task's training, such as splits.

    The seed is the site's own, so that a split of its data is the same in every round.
    """
    session = current()
    seed_everything(start_seed(session.constants()["seed"], session.site))


def seed_task() -> int:
    """Seed the global generators for the current task, and return the seed."""
    seed = current().context.seed
    seed_everything(seed)
    return seed


def _widens(narrow: torch.dtype, wide: torch.dtype) -> bool:
    """Return whether another dtype has every value of a dtype."""
    import torch

    same_kind = narrow.is_floating_point == wide.is_floating_point
    if narrow.is_floating_point and min(narrow.itemsize, wide.itemsize) == 1:
        return narrow == wide  # torch promotes no floats of eight bits
    return same_kind and torch.promote_types(narrow, wide) == wide
