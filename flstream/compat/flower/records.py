"""Flower's records: arrays, metrics and configurations by name, and how they travel."""

from __future__ import annotations

import io
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import msgspec
import numpy as np

from flstream.errors import LayoutError
from flstream.model.dtypes import code_of

if TYPE_CHECKING:
    import torch

ValueT = TypeVar("ValueT")

_NUMPY = "numpy.ndarray"


class TypedRecord(MutableMapping[str, ValueT], Generic[ValueT]):
    """Mapping from text to values of known types, in the order in which they were set."""

    def __init__(
        self, values: Mapping[str, ValueT] | None = None, *, keep_input: bool = True
    ) -> None:
        self._values: dict[str, ValueT] = {}
        self.update(values or {})

    def _check(self, key: str, value: Any) -> None:
        """Refuse a value of another type."""

    def __getitem__(self, key: str) -> ValueT:
        return self._values[key]

    def __setitem__(self, key: str, value: ValueT) -> None:
        if not isinstance(key, str):
            raise TypeError(f"a key of a {type(self).__name__} is text, and not {key!r}")
        self._check(key, value)
        self._values[key] = value

    def __delitem__(self, key: str) -> None:
        del self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return repr(self._values)

    def copy(self) -> Self:
        """Return a shallow copy."""
        return type(self)(self)


def _is_of(value: Any, kinds: tuple[type, ...]) -> bool:
    """Return whether a value is of one of some types, or a list of values of one of them."""
    if isinstance(value, list):
        return not value or any(all(type(item) is kind for item in value) for kind in kinds)
    return isinstance(value, kinds)


class MetricRecord(TypedRecord[Any]):
    """Numbers, and lists of numbers of one type, by name."""

    def __init__(
        self, metric_dict: Mapping[str, Any] | None = None, keep_input: bool = True
    ) -> None:
        super().__init__(metric_dict)

    def _check(self, key: str, value: Any) -> None:
        if not _is_of(value, (int, float)) or isinstance(value, bool):
            raise TypeError(
                f"the metric {key!r} is a {type(value).__name__}; give it an int, a float, or a "
                "list of either"
            )


class ConfigRecord(TypedRecord[Any]):
    """Settings by name: int, float, str, bytes, bool, and lists of values of one of these."""

    def __init__(
        self, config_dict: Mapping[str, Any] | None = None, keep_input: bool = True
    ) -> None:
        super().__init__(config_dict)

    def _check(self, key: str, value: Any) -> None:
        if not _is_of(value, (int, float, str, bytes, bool)):
            raise TypeError(
                f"the setting {key!r} is a {type(value).__name__}; give it an int, float, str, "
                "bytes, bool, or a list of one of them"
            )


class Array:
    """An array, of NumPy or torch, with its serialised form.

    Args:
        args: A NumPy array; a torch tensor; or dtype, shape, stype and data.
        dtype: Name of the NumPy dtype.
        shape: Shape.
        stype: Form of the data: ``numpy.ndarray``.
        data: Bytes of a ``.npy`` file.
        ndarray: A NumPy array.
        torch_tensor: A torch tensor.
    """

    def __init__(
        self,
        *args: Any,
        dtype: str | None = None,
        shape: tuple[int, ...] | None = None,
        stype: str | None = None,
        data: bytes | None = None,
        ndarray: Any = None,
        torch_tensor: Any = None,
    ) -> None:
        if len(args) == 1:
            value = args[0]
        elif args or data is not None:
            given = dict(zip(("dtype", "shape", "stype", "data"), args, strict=False))
            data, stype = given.get("data", data), given.get("stype", stype)
            if stype != _NUMPY or not isinstance(data, bytes):
                raise TypeError(f"an Array of the stype {stype!r} is not known; use {_NUMPY}")
            value = np.load(io.BytesIO(data), allow_pickle=False)
        else:
            value = ndarray if ndarray is not None else torch_tensor
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
        values: A mapping to arrays, a torch state dict, or a list of NumPy arrays.
        array_dict: A mapping to arrays.
        numpy_ndarrays: A list of NumPy arrays, whose names are their numbers.
        torch_state_dict: A torch state dict.
        keep_input: Whether a given mapping or list stays as it is.

    Attributes:
        origin: Where its arrays lie, unchanged: a stored model or a site's update; None elsewhere.
    """

    origin: Any = None
    _arrays: Callable[[], Mapping[str, Array]] | None = None

    def __init__(
        self,
        values: Any = None,
        *,
        array_dict: Mapping[str, Array] | None = None,
        numpy_ndarrays: list[Any] | None = None,
        torch_state_dict: Mapping[str, Any] | None = None,
        keep_input: bool = True,
    ) -> None:
        forms: tuple[Any, ...] = (values, array_dict, numpy_ndarrays, torch_state_dict, {})
        given = next(form for form in forms if form is not None)
        super().__init__()
        if isinstance(given, Mapping):
            for name, value in given.items():
                self[name] = value if isinstance(value, Array) else Array(value)
        elif isinstance(given, list):
            for place, value in enumerate(given):
                self[str(place)] = Array(value)
        else:
            raise TypeError(
                f"an ArrayRecord is made of a mapping or a list, not of a {type(given).__name__}"
            )
        if not keep_input:
            given.clear()

    @classmethod
    def lying(cls, origin: Any, arrays: Callable[[], Mapping[str, Array]]) -> ArrayRecord:
        """Return the record of a stored model or update, which is looked at once it is used."""
        record = cls()
        record.origin, record._arrays = origin, arrays
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
    def from_torch_state_dict(cls, state_dict: Mapping[str, Any], **_: Any) -> ArrayRecord:
        """Return a record of a torch state dict."""
        return cls(state_dict)

    def _check(self, key: str, value: Any) -> None:
        if not isinstance(value, Array):
            raise TypeError(f"{key!r} is a {type(value).__name__}; give it an Array")
        self._look()
        self.origin = None

    def _look(self) -> dict[str, Array]:
        if self._arrays is not None:
            arrays, self._arrays = self._arrays, None
            self._values.update(arrays())
        return self._values

    def __getitem__(self, key: str) -> Array:
        return self._look()[key]

    def __delitem__(self, key: str) -> None:
        del self._look()[key]
        self.origin = None

    def __iter__(self) -> Iterator[str]:
        return iter(self._look())

    def __len__(self) -> int:
        return len(self._look())

    def copy(self) -> Self:
        """Return a shallow copy, which lies where this record does."""
        other = type(self)(self)
        other.origin = self.origin
        return other

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


RecordT = TypeVar("RecordT", ArrayRecord, MetricRecord, ConfigRecord)


class RecordDict(TypedRecord[Any]):
    """Records by name: the content of a message.

    Args:
        records: The records.
        array_records: Further ones.
        metric_records: Further ones.
        config_records: Further ones.
    """

    def __init__(
        self,
        records: Mapping[str, Any] | None = None,
        *,
        array_records: Mapping[str, ArrayRecord] | None = None,
        metric_records: Mapping[str, MetricRecord] | None = None,
        config_records: Mapping[str, ConfigRecord] | None = None,
    ) -> None:
        super().__init__(records)
        for further in (array_records, metric_records, config_records):
            self.update(further or {})

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


class _RecordsOf(MutableMapping[str, RecordT], Generic[RecordT]):
    """The records of one type in a :class:`RecordDict`, which changes with this mapping."""

    def __init__(self, records: RecordDict, kind: type[RecordT]) -> None:
        self._records = records
        self._kind: type[RecordT] = kind

    def __getitem__(self, key: str) -> RecordT:
        record: RecordT = self._records[key]
        if not isinstance(record, self._kind):
            raise KeyError(key)
        return record

    def __setitem__(self, key: str, value: RecordT) -> None:
        if not isinstance(value, self._kind):
            raise TypeError(f"{key!r} is a {type(value).__name__}; give it a {self._kind.__name__}")
        self._records[key] = value

    def __delitem__(self, key: str) -> None:
        del self._records[key]

    def __iter__(self) -> Iterator[str]:
        return (key for key, record in self._records.items() if isinstance(record, self._kind))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return repr(dict(self))


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
