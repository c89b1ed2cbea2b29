"""Replay of a recorded factory: tensors computed one by one, by the steps that they depend on.

Random numbers are drawn in the factory's order. A step that draws continues after another one, or
at a state that the factory has set. Where steps are not computed in that order, the generator's
state between them is kept, 5 KiB. Steps whose results are written over are computed for that
state alone, and forgotten.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from flstream.errors import ModelError
from flstream.model.checkpoint import BodyFile
from flstream.model.layout import Layout
from flstream.model.memory import MemoryBody

# So many times the bytes of all steps may be computed, beyond a little, to hold few at a time.
_MOST_WORK, _LITTLE_WORK = 4, 64 << 20
_STEP_COST = 4 << 10  # of a step whatever its tensors, in bytes


class NotRecordedError(ModelError):
    """A factory does what cannot be replayed; the message is a clause that says what."""


@dataclass(frozen=True, slots=True)
class View:
    """Place of a tensor's elements in a recorded storage; offset and stride are in elements."""

    storage: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @classmethod
    def of(cls, storage: int, tensor: torch.Tensor) -> View:
        """Return the place of a tensor's elements in a storage."""
        form = tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset())
        return cls(storage, tensor.dtype, *form)

    def over(self, storage: torch.UntypedStorage) -> torch.Tensor:
        """Return the tensor over memory for its storage."""
        empty = torch.empty(0, dtype=self.dtype, device=storage.device)
        return empty.set_(storage, self.offset, self.shape, self.stride)


@dataclass(slots=True)
class Step:
    """Operation that writes storages, with views in place of tensors."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    sources: list[int]  # the steps that wrote what it reads
    storages: list[int]  # those that it reads, writes or makes
    filled: int | None  # the storage that it writes as a whole and does not read
    made: list[View | None]  # its results, those in new storages
    # Of one that draws random numbers: the step whose draws it continues, or the state to set.
    state: int | torch.Tensor | None = None


class RecordedModel:
    """Model whose tensors are computed one by one, by the steps that they depend on.

    Attributes:
        layout: Layout of the model.
        peak: Most bytes of tensors in memory at a time.
    """

    def __init__(
        self, layout: Layout, places: Mapping[str, View], last: Mapping[int, int], replay: Replay
    ) -> None:
        self.layout = layout
        self._places, self._last, self._replay = places, last, replay
        plan = replay.again(is_dry=True)
        for _ in self._computed(plan, places):
            plan.refuse_too_much()
        self.peak = max(plan.peak, replay.peak) + replay.constant_bytes
        self._wanted = plan.wanted

    def write(self, file: BodyFile) -> None:
        """Compute the tensors of a file, and write them to it.

        Args:
            file: File whose layout has tensors of this model.

        Raises:
            NotRecordedError: An operation did not do again what was recorded.
            CheckpointError: The file cannot be written.
        """
        replay = self._replay.again(self._wanted)
        with torch.no_grad():
            for names, storage in self._computed(replay, file.layout.by_name):
                for name in names:
                    tensor = self._places[name].over(storage)
                    file.write_tensor(name, MemoryBody.of({name: tensor}))
                del tensor, storage  # before the next one is allocated

    def _computed(self, replay: Replay, names: Iterable[str]) -> Iterator[tuple[list[str], Any]]:
        """Yield tensors of one storage after another, in the order of their random numbers."""
        by_storage: dict[int, list[str]] = {}
        for name in names:
            by_storage.setdefault(self._places[name].storage, []).append(name)
        roots = {storage: self._last.get(storage) for storage in by_storage}
        for storage in sorted(by_storage, key=lambda storage: replay.begin(roots[storage])):
            root = roots[storage]
            yield by_storage[storage], replay.run([] if root is None else [root], [storage])[0]


class Replay:
    """Computation of steps, each after those that it depends on.

    A dry one computes nothing, and counts.

    Attributes:
        peak: Most bytes of storages at a time.
        wanted: Steps after which the generator's state was needed later.
    """

    def __init__(
        self,
        steps: list[Step],
        sizes: list[int],
        after: Mapping[int, torch.Tensor | None],
        steps_to_keep: Collection[int] | None = None,
        *,
        is_dry: bool = False,
    ) -> None:
        self._steps, self._sizes = steps, sizes
        self._after, self._steps_to_keep, self._is_dry = dict(after), steps_to_keep, is_dry
        self._at: int | None = None  # the step after which the generator has its state
        self._live = self._work = self.peak = 0
        self._recorded = self._counted = 0  # cost of the first steps, and their number
        self.wanted: set[int] = set()

    def again(
        self, steps_to_keep: Collection[int] | None = None, *, is_dry: bool = False
    ) -> Replay:
        """Begin anew, with the kept states; keep those after some steps, or after all."""
        return Replay(self._steps, self._sizes, self._after, steps_to_keep, is_dry=is_dry)

    @property
    def constant_bytes(self) -> int:
        """Bytes of the values that code gives."""
        leaves = (leaf for step in self._steps for leaf in step.args)
        return sum(leaf.nbytes for leaf in leaves if isinstance(leaf, torch.Tensor))

    def refuse_too_much(self) -> None:
        """Refuse to compute steps over and over."""
        if self._work <= _MOST_WORK * _LITTLE_WORK:
            return
        self._recorded += sum(map(self._cost, self._steps[self._counted :]))
        self._counted = len(self._steps)
        if self._work > _MOST_WORK * self._recorded:
            raise NotRecordedError("it computes tensors from others, over and over")

    def _cost(self, step: Step) -> int:
        return _STEP_COST + sum(self._sizes[storage] for storage in step.storages)

    def results(self, step: Step) -> Any:
        """Compute a step that is not in the record, from the steps before it."""
        self._at = None  # others have used the generator
        self.refuse_too_much()
        values = self.run(step.sources, step.storages)
        memory = dict(zip(step.storages, values, strict=True))
        if step.state is not None:
            self._set_generator(step.state)
        with torch.no_grad():
            return self._call(step, memory)

    def begin(self, root: int | None) -> int:
        """Return the first step of those that one depends on, or the first that draws."""
        if root is None:
            return -1
        steps = self._needed([root])
        return next((step for step in steps if self._steps[step].state is not None), steps[0])

    def run(self, roots: Collection[int], results: Collection[int]) -> list[Any]:
        """Compute steps and those that they depend on; return memory of storages."""
        steps = self._needed(roots)
        end = {storage: index for index in steps for storage in self._steps[index].storages}
        memory: dict[int, Any] = {}
        for index in steps:
            step = self._steps[index]
            if step.state is not None:
                self._set_generator(step.state)
            self._call(step, memory)
            if step.state is not None:
                self._at = index
                if self._steps_to_keep is None or index in self._steps_to_keep:
                    get_state = torch.default_generator.get_state
                    self._after[index] = None if self._is_dry else get_state()
            for storage in step.storages:
                if end[storage] == index and storage not in results and storage in memory:
                    del memory[storage]
                    self._live -= self._sizes[storage]
        for storage in results:
            if storage not in memory:
                self._allocate(storage, memory, is_filled=False)
        self._live -= sum(self._sizes[storage] for storage in memory)
        return [memory[storage] for storage in results]

    def _needed(self, roots: Iterable[int]) -> list[int]:
        """Return steps and all that they depend on, in the order of the record."""
        needed: set[int] = set()
        todo = [*roots]
        while todo:
            if (index := todo.pop()) not in needed:
                needed.add(index)
                todo += self._steps[index].sources
        return sorted(needed)

    def _set_generator(self, state: int | torch.Tensor) -> None:
        """Bring the generator to a state, or to that after a step."""
        if not isinstance(state, int):
            self._at = None
            if not self._is_dry:
                torch.default_generator.set_state(state)
            return
        undone = []
        before: int | torch.Tensor | None = state
        while isinstance(before, int) and before != self._at and before not in self._after:
            undone.append(before)
            before = self._steps[before].state
        for index in reversed(undone):
            self.run([index], [])
        if self._at != state:
            self.wanted.add(state)
            self._at = state
            if not self._is_dry:
                kept = self._after[state]
                assert kept is not None
                torch.default_generator.set_state(kept)

    def _call(self, step: Step, memory: dict[int, Any]) -> Any:
        """Call a step's operation, add its new storages to memory, and return its results."""
        new = {view.storage for view in step.made if view is not None}
        self._work += self._cost(step)
        for storage in {*step.storages} - new - memory.keys():
            self._allocate(storage, memory, is_filled=storage == step.filled)
        self._live += sum(self._sizes[storage] for storage in new)
        self.peak = max(self.peak, self._live)
        if self._is_dry:
            memory |= dict.fromkeys(new)
            return None
        args, kwargs = tree_map(
            lambda x: x.over(memory[x.storage]) if isinstance(x, View) else x,
            (step.args, step.kwargs),
        )
        try:
            results = step.func(*args, **kwargs)
        except Exception as error:
            raise NotRecordedError(f"{step.func} fails: {error}") from error
        tensors = [leaf for leaf in tree_leaves(results) if isinstance(leaf, torch.Tensor)]
        for tensor, view in zip(tensors, step.made, strict=False):
            if view is not None:
                held = memory[view.storage] = tensor.untyped_storage()
                is_same = View.of(view.storage, tensor) == view
                # Sums may leave their results in more memory.
                if not is_same or held.nbytes() < self._sizes[view.storage]:
                    raise NotRecordedError(f"{step.func} returns tensors of another form")
        return results

    def _allocate(self, storage: int, memory: dict[int, Any], *, is_filled: bool) -> None:
        self._live += self._sizes[storage]
        self.peak = max(self.peak, self._live)
        # What code leaves as it was allocated is zeros, so that it has the same bits each time.
        allocate = torch.empty if is_filled else torch.zeros
        memory[storage] = (
            None
            if self._is_dry
            else allocate(self._sizes[storage], dtype=torch.uint8, device="cpu").untyped_storage()
        )
