"""Flower's records: arrays, metrics and configurations by name, and how they travel."""

from __future__ import annotations

import io
from collections import OrderedDict, UserDict
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self, TypeVar

import msgspec
import numpy as np

from flstream.errors import LayoutError
from flstream.model.dtypes import code_of

if TYPE_CHECKING:
    import torch

ValueT = TypeVar("ValueT")

_NUMPY = "numpy.ndarray"
_SERIALISED = ("dtype", "shape", "stype", "data")


class TypedRecord(UserDict[str, ValueT]):
    """Mapping from text to values of known types, in the order in which they were set."""

    def _check(self, key: str, value: Any) -> None:
        """Refuse a value of another type."""

    def __setitem__(self, key: str, value: ValueT) -> None:
        if not isinstance(key, str):
            raise TypeError(f"a key of a {type(self).__name__} is text, and not {key!r}")
        self._check(key, value)
        self.data[key] = value


class _PlainRecord(TypedRecord[Any]):
    """Plain values, and lists of values of one type.

    Args:
        values: The values by name.
        keep_input: Taken as Flower does; the mapping stays as it is.
        named: The values under the name that Flower has for them, such as ``metric_dict``.
    """

    kinds: tuple[type, ...]

    def __init__(
        self,
        values: Mapping[str, Any] | None = None,
        keep_input: bool = True,
        **named: Mapping[str, Any] | None,
    ) -> None:
        super().__init__(values or next(iter(named.values()), None))

    def _check(self, key: str, value: Any) -> None:
        values = value if isinstance(value, list) else [value]
        if not values or any(all(type(item) is kind for item in values) for kind in self.kinds):
            return
        if isinstance(value, self.kinds) and not (type(value) is bool and bool not in self.kinds):
            return  # of a derived type, such as NumPy's float64
        kinds = ", ".join(kind.__name__ for kind in self.kinds)
        raise TypeError(
            f"{key!r} of a {type(self).__name__} is a {type(value).__name__}; give it one of "
            f"{kinds}, or a list of one of them"
        )


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
    def from_numpy_ndarray(cls, ndarray: Any) -> Array:
        """Return an array of a NumPy array."""
        return cls(ndarray)

    @classmethod
    def from_torch_tensor(cls, tensor: torch.Tensor) -> Array:
        """Return an array of a torch tensor."""
        return cls(tensor)

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


class ArrayRecord(TypedRecord[Array]):
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

    origin: Any = None
    _look: Callable[[], Mapping[str, Array]] | None = None
    _arrays: dict[str, Array]

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
        record.origin, record._look = origin, look
        return record

    @classmethod
    def from_array_dict(cls, array_dict: Mapping[str, Array], **_: Any) -> ArrayRecord:
        """Return a record of arrays by name."""
        return cls(array_dict)

    @classmethod
    def from_numpy_ndarrays(cls, ndarrays: Iterable[Any], **_: Any) -> ArrayRecord:
        """Return a record of NumPy arrays."""
        return cls(list(ndarrays))

    @classmethod
    def from_torch_state_dict(cls, torch_state_dict: Mapping[str, Any], **_: Any) -> ArrayRecord:
        """Return a record of a torch state dict."""
        return cls(torch_state_dict)

    @property
    def data(self) -> dict[str, Array]:
        """The arrays, which are read first where nobody has looked at them."""
        if self._look is not None:
            look, self._look = self._look, None
            self._arrays.update(look())
        return self._arrays

    @data.setter
    def data(self, arrays: dict[str, Array]) -> None:
        self._arrays = arrays

    def _check(self, key: str, value: Any) -> None:
        if not isinstance(value, Array):
            raise TypeError(f"{key!r} is a {type(value).__name__}; give it an Array")

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

    @property
    def forms(self) -> dict[str, tuple[str, tuple[int, ...]]] | None:
        """Dtype, as safetensors names it, and shape by name; None where one has another dtype."""
        try:
            values = {name: array.value for name, array in self.items()}
            return {
                name: (code_of(value, name), tuple(value.shape)) for name, value in values.items()
            }
        except LayoutError:
            return None


class RecordDict(TypedRecord[Any]):
    """Records by name: the content of a message.

    Args:
        records: The records.
        further: Further ones: ``array_records``, ``metric_records`` and ``config_records``.
    """

    def __init__(
        self, records: Mapping[str, Any] | None = None, **further: Mapping[str, Any]
    ) -> None:
        super().__init__(records)
        for of_kind in further.values():
            self.update(of_kind or {})

    def _check(self, key: str, value: Any) -> None:
        if not isinstance(value, ArrayRecord | MetricRecord | ConfigRecord):
            raise TypeError(
                f"{key!r} is a {type(value).__name__}; give it an ArrayRecord, a MetricRecord or a "
                "ConfigRecord"
            )

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
        self._records, self._kind = records, kind
        self.data = {key: record for key, record in records.items() if isinstance(record, kind)}

    def _check(self, key: str, value: Any) -> None:
        if not isinstance(value, self._kind):
            raise TypeError(f"{key!r} is a {type(value).__name__}; give it a {self._kind.__name__}")
        self._records[key] = value

    def __delitem__(self, key: str) -> None:
        super().__delitem__(key)
        del self._records[key]


class _Packed(msgspec.Struct, array_like=True):
    """A record as it travels: its kind, and its values; None for the model's body."""

    kind: str
    values: Any


_KINDS: dict[str, type[Any]] = {"a": ArrayRecord, "m": MetricRecord, "c": ConfigRecord}
_BODY = "body"


def _number(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a {type(value).__name__} cannot travel in a record")


_encoder = msgspec.msgpack.Encoder(enc_hook=_number)
_decoder = msgspec.msgpack.Decoder(dict[str, _Packed])


def pack_records(records: RecordDict, body: str | None = None) -> bytes:
    """Return records as bytes.

    Args:
        records: The records.
        body: Name of the one that travels apart, as a model or an update; None for none.
    """
    packed = {}
    for name, record in records.items():
        kind = next(kind for kind, known in _KINDS.items() if isinstance(record, known))
        if name == body:
            packed[name] = _Packed(_BODY, None)
        elif kind == "a":
            packed[name] = _Packed(kind, {key: array.data for key, array in record.items()})
        else:
            packed[name] = _Packed(kind, dict(record))
    return _encoder.encode(packed)


def unpack_records(data: bytes, body: Callable[[], ArrayRecord] = ArrayRecord) -> RecordDict:
    """Return records of bytes, with the one that has travelled apart."""
    records = RecordDict()
    for name, packed in _decoder.decode(data).items():
        if packed.kind == _BODY:
            records[name] = body()
        elif packed.kind == "a":
            arrays = {key: Array(data=data, stype=_NUMPY) for key, data in packed.values.items()}
            records[name] = ArrayRecord(arrays)
        else:
            records[name] = _KINDS[packed.kind](packed.values)
    return records
