"""Flower's records: arrays, metrics and configurations by name, and how they travel."""

from __future__ import annotations

import io
from collections import OrderedDict, UserDict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self, TypeVar

import msgspec
import numpy as np

if TYPE_CHECKING:
    import torch

ValueT = TypeVar("ValueT")

_NUMPY = "numpy.ndarray"
_SERIALISED = ("dtype", "shape", "stype", "data")


class Unread:
    """Mixin of a ``UserDict`` or ``UserList`` whose content is read once somebody looks at it.

    Attributes:
        look: Function that reads the content; None where it is here.
    """

    look: Callable[[], Any] | None = None
    _content: Any

    @property
    def data(self) -> Any:
        """The content."""
        if self.look is not None:
            look, self.look = self.look, None
            self._content = look()
        return self._content

    @data.setter
    def data(self, content: Any) -> None:
        self._content = content


class TypedRecord(UserDict[str, ValueT]):
    """Mapping from text to values of known types, in the order in which they were set.

    Attributes:
        kinds: The types.
        has_lists: Whether a value may also be a list of values of one type.
    """

    kinds: tuple[type, ...]
    has_lists = False

    def __setitem__(self, key: str, value: ValueT) -> None:
        if not isinstance(key, str):
            raise TypeError(f"a key of a {type(self).__name__} is text, and not {key!r}")
        if not self._takes(value):
            names = ", ".join(kind.__name__ for kind in self.kinds)
            more = ", or a list of one of them" if self.has_lists else ""
            raise TypeError(
                f"{key!r} of a {type(self).__name__} is a {type(value).__name__}; give it one of "
                f"{names}{more}"
            )
        self.data[key] = value

    def _takes(self, value: Any) -> bool:
        if isinstance(value, list) and self.has_lists:
            return any(all(type(item) is kind for item in value) for kind in self.kinds)
        # Also of a derived type, such as NumPy's float64; but a bool is no int.
        return isinstance(value, self.kinds) and (type(value) is not bool or bool in self.kinds)


class _PlainRecord(TypedRecord[Any]):
    """Plain values, and lists of values of one type.

    Args:
        values: The values by name.
        keep_input: Taken as Flower does; the mapping stays as it is.
        named: The values under the name that Flower has for them, such as ``metric_dict``.
    """

    has_lists = True

    def __init__(
        self,
        values: Mapping[str, Any] | None = None,
        keep_input: bool = True,
        **named: Mapping[str, Any] | None,
    ) -> None:
        super().__init__(values or next(iter(named.values()), None))


class MetricRecord(_PlainRecord):
    """Numbers, and lists of numbers of one type, by name."""

    kinds = (int, float)


class ConfigRecord(_PlainRecord):
    """Settings by name: plain values, and lists of values of one type."""

    kinds = (int, float, str, bytes, bool)


class Array:
    """An array, of NumPy or torch, with its serialised form.

    Args:
        args: A NumPy array; a torch tensor; or dtype, shape, stype (``numpy.ndarray``) and data,
            the bytes of a ``.npy`` file.
        named: The same by name: ``ndarray``, ``torch_tensor``, or those four.
    """

    def __init__(self, *args: Any, **named: Any) -> None:
        serialised = dict(zip(_SERIALISED, args, strict=False)) if len(args) > 1 else named
        value: Any = next((one for one in (*args, *named.values()) if one is not None), None)
        if "data" in serialised:
            data, stype = serialised["data"], serialised.get("stype")
            if stype != _NUMPY or not isinstance(data, bytes):
                raise TypeError(f"an Array of the stype {stype!r} is not known; use {_NUMPY}")
            value = np.load(io.BytesIO(data), allow_pickle=False)
        if isinstance(value, np.ndarray):
            value = value.copy()
        elif hasattr(value, "detach"):
            value = value.detach().cpu().clone()
        else:
            raise TypeError(f"an Array is made of a NumPy array or a torch tensor, not {value!r}")
        self._value = value

    @classmethod
    def over(cls, value: Any) -> Array:
        """Return an array over memory, or over a function that reads it, without a copy."""
        array = cls.__new__(cls)
        array._value = value
        return array

    @classmethod
    def _constructed(cls, *args: Any, **named: Any) -> Array:
        """Return an array, as the constructor does."""
        return cls(*args, **named)

    from_numpy_ndarray = from_torch_tensor = _constructed

    @property
    def value(self) -> Any:
        """The NumPy array or torch tensor, which is not to be changed."""
        return self._value() if callable(self._value) else self._value

    def numpy(self) -> Any:
        """Return a NumPy array of its own."""
        value = self.value
        return value.copy() if isinstance(value, np.ndarray) else value.numpy().copy()

    def torch(self, *, is_own: bool = True) -> torch.Tensor:
        """Return a torch tensor, of its own unless that is not asked for."""
        import torch

        value = self.value
        tensor = torch.from_numpy(value) if isinstance(value, np.ndarray) else value
        return tensor.clone() if is_own else tensor

    @property
    def dtype(self) -> str:
        """Name of the dtype, as NumPy has it."""
        return str(self.value.dtype).removeprefix("torch.")

    @property
    def shape(self) -> list[int]:
        """Shape."""
        return list(self.value.shape)

    @property
    def stype(self) -> str:
        """Form of :attr:`data`."""
        return _NUMPY

    @property
    def data(self) -> bytes:
        """Bytes of a ``.npy`` file."""
        file = io.BytesIO()
        np.save(file, self.numpy(), allow_pickle=False)
        return file.getvalue()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Array):
            return NotImplemented
        return (self.dtype, self.shape, self.data) == (other.dtype, other.shape, other.data)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Array({self.dtype}, {self.shape})"


class ArrayRecord(Unread, TypedRecord[Array]):
    """Arrays by name; those of a model or an update are read from its file when they are asked for.

    Args:
        values: A mapping to arrays, a torch state dict, or a list of NumPy arrays, whose names are
            their numbers.
        keep_input: Whether a given mapping or list stays as it is.
        named: The values under the name that Flower has for them: ``array_dict``,
            ``numpy_ndarrays`` or ``torch_state_dict``.

    Attributes:
        origin: Where its arrays lie, unchanged: a stored model or a site's update; None elsewhere.
    """

    kinds = (Array,)
    origin: Any = None

    def __init__(self, values: Any = None, *, keep_input: bool = True, **named: Any) -> None:
        super().__init__()
        source: Any = next(form for form in (values, *named.values(), {}) if form is not None)
        is_named = isinstance(source, Mapping)
        if not (is_named or isinstance(source, list)):
            raise TypeError(
                f"an ArrayRecord is made of a mapping or a list, not of a {type(source).__name__}"
            )
        items = (
            source.items() if is_named else zip(map(str, range(len(source))), source, strict=True)
        )
        for name, value in items:
            self[name] = value if isinstance(value, Array) else Array(value)
        if not keep_input:
            source.clear()

    @classmethod
    def lying(cls, origin: Any, look: Callable[[], Mapping[str, Array]]) -> ArrayRecord:
        """Return the record of a stored model or update, which is looked at once it is used."""
        record = cls()
        record.origin, record.look = origin, look
        return record

    @classmethod
    def _constructed(cls, *args: Any, **named: Any) -> Self:
        """Return a record, as the constructor does."""
        return cls(*args, **named)

    from_array_dict = from_numpy_ndarrays = from_torch_state_dict = _constructed

    def __setitem__(self, key: str, value: Array) -> None:
        super().__setitem__(key, value)
        self.origin = None

    def __delitem__(self, key: str) -> None:
        super().__delitem__(key)
        self.origin = None

    def copy(self) -> Self:
        """Return a shallow copy, which lies where this record does."""
        other = type(self)(self.data)
        other.origin = self.origin
        return other

    __copy__ = copy

    def to_numpy_ndarrays(self, *, keep_input: bool = True) -> list[Any]:
        """Return the arrays as NumPy arrays of their own, in order."""
        arrays = [array.numpy() for array in self.values()]
        if not keep_input:
            self.clear()
        return arrays

    def to_torch_state_dict(self, *, keep_input: bool = True) -> OrderedDict[str, torch.Tensor]:
        """Return the arrays as torch tensors by name."""
        items = self.items()
        tensors = OrderedDict((name, array.torch(is_own=keep_input)) for name, array in items)
        if not keep_input:
            self.clear()
        return tensors

    def count_bytes(self) -> int:
        """Return the bytes of the arrays and of their names."""
        return sum(array.value.nbytes + len(name) for name, array in self.items())


class RecordDict(TypedRecord[Any]):
    """Records by name: the content of a message.

    Args:
        records: The records.
        further: Further ones: ``array_records``, ``metric_records`` and ``config_records``.
    """

    kinds = (ArrayRecord, MetricRecord, ConfigRecord)

    def __init__(
        self, records: Mapping[str, Any] | None = None, **further: Mapping[str, Any]
    ) -> None:
        super().__init__(records)
        for of_kind in further.values():
            self.update(of_kind or {})

    @property
    def array_records(self) -> _RecordsOf[ArrayRecord]:
        """The records of arrays."""
        return _RecordsOf(self, ArrayRecord)

    @property
    def metric_records(self) -> _RecordsOf[MetricRecord]:
        """The records of metrics."""
        return _RecordsOf(self, MetricRecord)

    @property
    def config_records(self) -> _RecordsOf[ConfigRecord]:
        """The records of settings."""
        return _RecordsOf(self, ConfigRecord)

    parameters_records = array_records
    metrics_records = metric_records
    configs_records = config_records


class _RecordsOf(TypedRecord[ValueT]):
    """The records of one type in a :class:`RecordDict`, which changes with this mapping."""

    def __init__(self, records: RecordDict, kind: type[ValueT]) -> None:
        self._records, self.kinds = records, (kind,)
        self.data = {key: record for key, record in records.items() if isinstance(record, kind)}

    def __setitem__(self, key: str, value: ValueT) -> None:
        super().__setitem__(key, value)
        self._records[key] = value

    def __delitem__(self, key: str) -> None:
        super().__delitem__(key)
        del self._records[key]


_KINDS: dict[str, type[Any]] = {"a": ArrayRecord, "m": MetricRecord, "c": ConfigRecord}
_BODY = "body"


def _plain(value: Any) -> Any:
    if isinstance(value, Array):
        return value.data
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a {type(value).__name__} cannot travel in a record")


_encoder = msgspec.msgpack.Encoder(enc_hook=_plain)
_decoder = msgspec.msgpack.Decoder(dict[str, tuple[str, Any]])


def pack_records(records: RecordDict, body: str | None = None) -> bytes:
    """Return records as bytes.

    Args:
        records: The records.
        body: Name of the one that travels apart, as a model or an update; None for none.
    """
    packed: dict[str, tuple[str, Any]] = {}
    for name, record in records.items():
        kind = next(kind for kind, known in _KINDS.items() if isinstance(record, known))
        packed[name] = (_BODY, None) if name == body else (kind, dict(record))
    return _encoder.encode(packed)


def unpack_records(data: bytes, body: Callable[[], ArrayRecord] = ArrayRecord) -> RecordDict:
    """Return records of bytes, with the one that has travelled apart."""
    records = RecordDict()
    for name, (kind, values) in _decoder.decode(data).items():
        if kind == "a":
            values = {key: Array(data=data, stype=_NUMPY) for key, data in values.items()}
        records[name] = body() if kind == _BODY else _KINDS[kind](values)
    return records
