"""Record of a model's factory: operations on tensors without bytes, which are replayed later.

A factory makes placeholders in place of tensors: they say that they are on the CPU, and have no
bytes. (Of tensors on the meta device, code like ``torch.nn.init.trunc_normal_`` knows that they
have none, and does something else.) What writes bytes becomes a step of the record. A tensor is
then computed alone, by the steps that it depends on: the same operations on the same values, and so
the same bits as if the factory had run in memory. Code that asks for a value, as by ``item()``,
gets it: it is computed at once.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NoReturn

import numpy as np
import torch
import xxhash
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from flstream.model.layout import Layout
from flstream.model.replay import NotRecordedError, RecordedModel, Replay, Step, View

_CPU = torch.device("cpu")
# What torch asks before the data of a tensor becomes another's.
_IS_COMPATIBLE = torch.ops.aten._has_compatible_shallow_copy_type.default
# Arguments of operations that also write tensors which their schema does not name as written, such
# as a batch norm's running mean, or that compute otherwise where a gradient is wanted.
_REFUSED = frozenset(("running_mean", "running_var", "train", "training", "hx"))
# On the CPU, the vectors that are their last results lie by columns; on the meta device, by rows.
_BY_COLUMNS = torch.ops.aten._linalg_svd.default, torch.ops.aten.linalg_eig.default
# Their results lie otherwise on the CPU than on the meta device, by no simple rule.
_COMPUTED = frozenset(
    (
        *(torch.ops.aten._fft_c2r.default, torch.ops.aten._fft_r2c.default),
        *(torch.ops.aten.sort.default, torch.ops.aten.max_unpool2d.default),
    )
)
# They write each element of their first argument, and read none of it.
_FILLING = frozenset(
    "aten::" + name
    for name in (
        *("bernoulli_", "cauchy_", "copy_", "exponential_", "fill_", "geometric_", "log_normal_"),
        *("normal_", "random_", "uniform_", "zero_"),
    )
)


class _Placeholder(torch.Tensor):
    """Tensor without bytes, which says that it is on the CPU."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    recorder: Recorder

    @classmethod
    def of(cls, meta: torch.Tensor, recorder: Recorder) -> _Placeholder:
        """Wrap a tensor on the meta device, whose memory it has."""
        placeholder: _Placeholder = torch.Tensor._make_subclass(
            cls, meta, meta.requires_grad, dispatch_device=True, device_for_backend_keys=_CPU
        )
        placeholder.recorder = recorder
        return placeholder

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Allow views where nothing is recorded: after the factory."""
        if func is torch.ops.prim.device.default:
            return _CPU
        recorder = next(leaf for leaf in tree_leaves(args) if isinstance(leaf, cls)).recorder
        is_view = all(value.alias_info for value in func._schema.returns)
        if func._schema.is_mutable or not (is_view or func is _IS_COMPATIBLE):
            recorder.refuse(
                f"{func} is called by another thread, or after the factory; set model.build = whole"
            )
        results = func(*tree_map(_meta, args), **tree_map(_meta, kwargs or {}))
        return tree_map(recorder.wrapped, results)

    def tolist(self) -> Any:
        """Return the elements, which are computed one by one."""
        return [row.tolist() for row in self.unbind()] if self.dim() else self.item()

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        self.recorder.refuse("it takes the memory of a tensor, as for NumPy or a file")

    numpy = data_ptr = untyped_storage = storage = share_memory_ = _refuse
    __array__ = __dlpack__ = __reduce_ex__ = _refuse

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        if id(self) not in memo:
            storage = _storage_of(self)
            if isinstance(self, torch.nn.Parameter):
                copy = self.detach().clone()
            else:  # tensors that share memory share it in the copy
                flat = self.detach().as_strided((storage.nbytes() // self.itemsize,), (1,), 0)
                key: Any = ("storage", storage._cdata)
                whole = memo[key] if key in memo else memo.setdefault(key, flat.clone())
                if whole.dtype != self.dtype:
                    self.recorder.refuse("it copies tensors of two dtypes that share memory")
                copy = whole.as_strided(self.shape, self.stride(), self.storage_offset())
            vars(copy).update(vars(self))  # such as that it is a parameter
            memo[id(self)] = copy.requires_grad_(self.requires_grad)
        return memo[id(self)]  # type: ignore[no-any-return]


def _storage_of(tensor: torch.Tensor) -> torch.UntypedStorage:
    return torch.Tensor.untyped_storage(tensor)


def _meta(value: Any) -> Any:
    """Return a plain tensor on the meta device in place of a placeholder."""
    if not isinstance(value, _Placeholder):
        return value
    return View.of(0, value).over(_storage_of(value))


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Mode in which torch's operations are recorded instead of done.

    Attributes:
        flaw: Clause on the first operation that cannot be replayed; empty without one. Code may
            have caught the error.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flaw = ""
        self._steps: list[Step] = []
        self._sizes: list[int] = []  # in bytes, of each storage
        self._storages: dict[int, tuple[int, torch.UntypedStorage]] = {}
        self._last: dict[int, int] = {}  # the last step that wrote a storage
        # Steps by the states of the generator after them.
        self._states: dict[bytes, int] = {}
        self._replay = Replay(self._steps, self._sizes, {})
        self._seeded = _key(torch.default_generator.get_state())

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # or torch imports its compiler: 2 s and 70 MiB

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Record an operation; return placeholders."""
        if func is torch.ops.prim.device.default:
            return _CPU
        try:
            return self._call(func, args, kwargs or {})
        except Exception as error:
            text = str(error).partition("\n")[0]
            self.flaw = self.flaw or (
                text if isinstance(error, NotRecordedError) else f"{func} fails: {text}"
            )
            raise

    @property
    def is_unused(self) -> bool:
        """Whether nothing was recorded, so that all is as without this mode."""
        return not self._storages and not self.flaw

    def refuse(self, flaw: str) -> NoReturn:
        """Keep why the factory cannot be replayed, and raise it."""
        self.flaw = self.flaw or flaw
        raise NotRecordedError(flaw)

    def wrapped(self, value: Any) -> Any:
        """Return a placeholder of a tensor on the meta device; any other value as it is."""
        return _Placeholder.of(value, self) if isinstance(value, torch.Tensor) else value

    def place(self, value: object) -> View | None:
        """Return the place of a placeholder; None of any other value."""
        return self._view(value) if isinstance(value, _Placeholder) else None

    def model(self, layout: Layout, state: Mapping[str, Any]) -> RecordedModel:
        """Return the model of placeholders by name.

        Raises:
            NotRecordedError: To compute its tensors one by one would take too long.
        """
        places = {spec.name: self._view(state[spec.name]) for spec in layout.tensors}
        return RecordedModel(layout, places, self._last, self._replay)

    def _call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        ours = [tensor for tensor in tensors if isinstance(tensor, _Placeholder)]
        draws = _draws(func, args, kwargs)
        if flaw := _REFUSED & _arguments(func):
            raise NotRecordedError(f"{func} has the argument {min(flaw)}, and may write more")
        if not tensors and _is_importing():
            if draws:
                raise NotRecordedError(f"{func} draws while a module is imported")
            return func(*args, **kwargs)  # a module outlives its record
        if tensors and not ours and not draws:
            if func is not torch.ops.aten.lift_fresh.default or _is_importing():
                return func(*args, **kwargs)  # of tensors that are none of the model's so far
            # Values in code, as of torch.tensor([1, 2]); or NumPy's memory, which may yet change.
            if not _storage_of(args[0]).resizable():
                raise NotRecordedError("it makes a tensor of memory of NumPy")
            step = Step(torch.ops.aten.clone.default, (args[0].clone(),), {}, [], [], None, [])
            return self._add(step, _as_meta(args[0]), {})
        if len(ours) < len(tensors):
            raise NotRecordedError(f"{func} takes a tensor with bytes, as of a file or NumPy")
        metas = {id(tensor): _meta(tensor) for tensor in ours}
        step = self._step(func, args, kwargs, {id(tensor): self._view(tensor) for tensor in ours})
        if draws:
            step.state = self._state()
        try:
            if _is_plainly_in_place(func):  # of some, this is torch's compiler's to find out
                if not _arguments(func) & {"index", "indices"}:
                    # In reality it would fail, which the factory may expect.
                    shapes = (tuple(tensor.shape) for tensor in ours)
                    if np.broadcast_shapes(*shapes) != tuple(args[0].shape):
                        raise NotRecordedError(f"{func} takes tensors of other shapes")
                results = metas[id(args[0])]
            elif func in _COMPUTED:
                results = tree_map(_as_meta, self._computed(step))
            else:
                results = _on_meta(func, *tree_map(lambda x: metas.get(id(x), x), (args, kwargs)))
        except NotRecordedError:
            raise
        except Exception:
            # It has no form without values, such as item() or nonzero(): they are computed.
            if func._schema.is_mutable:
                raise
            results = tree_map(_as_meta, self._computed(step))
        if not ours and "dtype" in _arguments(func) and isinstance(results, torch.Tensor):
            step.kwargs["dtype"] = results.dtype  # torch's default may be another one later
        if torch.Tag.inplace_view in func.tags:  # the bytes stay, and the tensor's form changes
            args[0].data = _Placeholder.of(metas[id(args[0])], self)
            return args[0]
        return self._add(step, results, {id(metas[id(tensor)]): tensor for tensor in ours})

    def _add(self, step: Step, results: Any, own: dict[int, Any]) -> Any:
        """Add a step to the record, if it writes bytes; return placeholders for its results."""
        for tensor in tree_leaves(results):
            if isinstance(tensor, torch.Tensor):
                storage = _storage_of(tensor)
                if is_new := storage._cdata not in self._storages:
                    self._storages[storage._cdata] = len(self._sizes), storage
                    self._sizes.append(storage.nbytes())
                step.made.append(self._view(tensor) if is_new else None)
        new = [view.storage for view in step.made if view is not None]
        step.storages = [*{*step.storages, *new}]
        written = {*new, *_written(step)}
        if written and not step.func._schema.name.startswith(("aten::empty", "aten::new_empty")):
            index = len(self._steps)
            self._steps.append(step)
            self._last |= dict.fromkeys(written, index)
            if step.state is not None:
                # A state that was never there stands for the one after the step from now on,
                # wherever code keeps it or sets it again.
                torch.rand(1, device=_CPU)
                while (key := _key(torch.default_generator.get_state())) in self._states:
                    torch.rand(1, device=_CPU)
                self._states[key] = index
        return tree_map(lambda x: own[id(x)] if id(x) in own else self.wrapped(x), results)

    def _step(self, func: Any, args: Any, kwargs: Any, views: dict[int, View]) -> Step:
        name = func._schema.name
        storages = [view.storage for view in views.values()]
        filled = None
        if name in _FILLING and func is not torch.ops.aten.bernoulli_.Tensor:
            target = views[id(args[0])].storage
            is_whole = args[0].nbytes == self._sizes[target] and args[0].is_contiguous()
            leaves = [leaf for leaf in tree_leaves((args, kwargs)) if id(leaf) in views]
            used = [views[id(leaf)].storage for leaf in leaves]  # `copy_` may have one twice
            filled = target if is_whole and used.count(target) == 1 else None
        read = {*storages} - {filled}
        if name.startswith("aten::new_") or (name.startswith("aten::") and name.endswith("_like")):
            read = set()  # but for the form
        sources = sorted({self._last[storage] for storage in read if storage in self._last})
        args, kwargs = tree_map(lambda x: views.get(id(x), x), (args, kwargs))
        return Step(func, args, kwargs, sources, storages, filled, [])

    def _state(self) -> int | torch.Tensor:
        """Return the step after which the generator has its state, or a state that was seeded."""
        state = torch.default_generator.get_state()
        key = _key(state)
        if key in self._states:
            return self._states[key]
        seeded = torch.Generator().manual_seed(torch.initial_seed()).get_state()
        if key not in (self._seeded, _key(seeded)):
            raise NotRecordedError("numbers are drawn that are not recorded, as by another thread")
        return state

    def _computed(self, step: Step) -> Any:
        """Compute a step's results now, since code depends on them."""
        state = torch.default_generator.get_state()
        try:
            return self._replay.results(step)
        finally:
            torch.default_generator.set_state(state)

    def _view(self, tensor: torch.Tensor) -> View:
        index, storage = self._storages.get(_storage_of(tensor)._cdata, (-1, None))
        if storage is None:
            raise NotRecordedError("it has a tensor that no recorded operation made")
        if storage.nbytes() != self._sizes[index]:
            raise NotRecordedError("it makes a tensor's memory larger in place")
        if tensor.is_conj() or tensor.is_neg():
            raise NotRecordedError("it conjugates or negates a tensor lazily")
        return View.of(index, tensor)


@cache
def _arguments(func: Any) -> frozenset[str]:
    return frozenset(argument.name for argument in func._schema.arguments)


@cache
def _is_plainly_in_place(func: Any) -> bool:
    """Return whether an operation writes its first argument, returns it, and does no more."""
    schema = func._schema
    written = [
        argument.name
        for argument in schema.arguments
        if argument.alias_info is not None and str(argument.type) == "Tensor"
    ]
    is_view = torch.Tag.inplace_view in func.tags
    return schema.name.endswith("_") and written == ["self"] and not is_view


def _draws(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Return whether an operation draws random numbers."""
    values = (*args, *kwargs.values())
    own = next((value for value in values if isinstance(value, torch.Generator)), None)
    if own is not None and own is not torch.default_generator:
        raise NotRecordedError(f"{func} draws from a generator of its own")
    return torch.Tag.nondeterministic_seeded in func.tags or "generator" in _arguments(func)


def _is_importing() -> bool:
    frame = sys._getframe()
    while (above := frame.f_back) is not None:
        frame = above
        if frame.f_globals.get("__name__") == "importlib._bootstrap":
            return True
    return False


def _written(step: Step) -> Iterator[int]:
    """Yield the storages of its arguments that a step writes."""
    for place, argument in enumerate(step.func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            positional = place < len(step.args)
            value = step.args[place] if positional else step.kwargs.get(argument.name)
            yield from (leaf.storage for leaf in tree_leaves(value) if isinstance(leaf, View))


def _on_meta(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call an operation on the meta device, which finds the form of its results."""
    kwargs = {key: value for key, value in kwargs.items() if key != "generator"}
    has_tensors = any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves((args, kwargs)))
    device = kwargs.get("device")
    if device is not None and torch.device(device) != _CPU:
        raise NotRecordedError(f"{func} makes a tensor on the device {device}")
    if device is not None or (not has_tensors and "device" in _arguments(func)):
        kwargs["device"] = torch.device("meta")
    results = func(*args, **kwargs)
    if func in _BY_COLUMNS and results[-1].dim() > 1:
        *others, last = results
        columns = torch.empty_like(last.mT, memory_format=torch.contiguous_format).mT
        results = *others, columns
    return results


def _as_meta(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device="meta")


def _key(state: torch.Tensor) -> bytes:
    return xxhash.xxh3_128_digest(state.numpy().tobytes())
