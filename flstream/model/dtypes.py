"""Element types of a body, named as in the safetensors format, and their numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import ml_dtypes
import numpy as np

from flstream.errors import LayoutError

if TYPE_CHECKING:
    import torch

Numbers = np.ndarray[Any, np.dtype[Any]]
"""Numbers in one dimension."""

quietly = np.errstate(all="ignore")
"""Decorator for what computes with any numbers; those that are of no use are found in its result.
"""


class DType(NamedTuple):
    """Element type: code in a header, bytes of an element, names in torch and NumPy."""

    code: str
    itemsize: int
    torch_name: str
    numpy_name: str | None


_ALL = (
    DType("F64", 8, "float64", "float64"),
    DType("F32", 4, "float32", "float32"),
    DType("F16", 2, "float16", "float16"),
    DType("BF16", 2, "bfloat16", None),
    DType("F8_E4M3", 1, "float8_e4m3fn", None),
    DType("F8_E5M2", 1, "float8_e5m2", None),
    DType("F8_E4M3FNUZ", 1, "float8_e4m3fnuz", None),
    DType("F8_E5M2FNUZ", 1, "float8_e5m2fnuz", None),
    DType("F8_E8M0", 1, "float8_e8m0fnu", None),
    DType("C64", 8, "complex64", "complex64"),
    DType("I64", 8, "int64", "int64"),
    DType("I32", 4, "int32", "int32"),
    DType("I16", 2, "int16", "int16"),
    DType("I8", 1, "int8", "int8"),
    DType("U64", 8, "uint64", "uint64"),
    DType("U32", 4, "uint32", "uint32"),
    DType("U16", 2, "uint16", "uint16"),
    DType("U8", 1, "uint8", "uint8"),
    DType("BOOL", 1, "bool", "bool"),
)
BY_CODE = {dtype.code: dtype for dtype in _ALL}
_BY_TORCH = {f"torch.{dtype.torch_name}": dtype.code for dtype in _ALL}
_BY_NUMPY = {np.dtype(dtype.numpy_name): dtype.code for dtype in _ALL if dtype.numpy_name}


def code_of(value: torch.Tensor | np.ndarray[Any, Any], name: str) -> str:
    """Return the header code of a tensor's or an array's element type.

    Raises:
        LayoutError: A body cannot hold the type; the message names the tensor ``name``.
    """
    if isinstance(value, np.ndarray):
        code = _BY_NUMPY.get(value.dtype)
    else:
        code = _BY_TORCH.get(str(value.dtype))
    if code is None:
        raise LayoutError(
            f"tensor {name!r} has dtype {value.dtype}, which cannot be streamed; {_remedy(value)}"
        )
    return code


def _remedy(value: torch.Tensor | np.ndarray[Any, Any]) -> str:
    if str(value.dtype).endswith("complex128"):  # which no .safetensors file has
        is_array = isinstance(value, np.ndarray)
        return "send it as " + (".astype('complex64')" if is_array else ".to(torch.complex64)")
    if isinstance(value, np.ndarray):
        native = value.dtype.newbyteorder("=")
        if native in _BY_NUMPY:
            return f"put its bytes into this machine's order: .astype({native.name!r})"
        if value.dtype.fields:
            return "send each of its fields as an array of its own"
        if value.dtype.kind in "OSU":
            return "send only numbers in params, and put other values in meta"
    elif value.is_quantized:
        return "send its values: .dequantize()"
    return f"convert it to one of {', '.join(dtype.torch_name for dtype in _ALL)}"


def torch_dtype(code: str) -> torch.dtype:
    """Return the torch dtype of a header code."""
    import torch

    dtype: torch.dtype = getattr(torch, BY_CODE[code].torch_name)
    return dtype


def numpy_dtype(code: str, name: str) -> np.dtype[Any]:
    """Return the NumPy dtype of a header code.

    Raises:
        LayoutError: NumPy has no such type; the message names the tensor ``name``.
    """
    numpy_name = BY_CODE[code].numpy_name
    if numpy_name is None:
        raise LayoutError(
            f"tensor {name!r} has dtype {BY_CODE[code].torch_name}, which NumPy does not have; "
            "receive the model as torch tensors (train.exchange_format = pytorch)"
        )
    return np.dtype(numpy_name)


INTEGERS = frozenset(code for code in BY_CODE if code[0] in "IU")
"""Types of whole numbers."""

SCALES = frozenset({"F8_E8M0"})
"""Powers of two without sign or zero, such as the scales of blocks: no difference of two is one."""

FLOATS = frozenset(BY_CODE) - INTEGERS - SCALES - {"BOOL"}
"""Types that optimizers change, that norms include, and that can be infinite or NaN."""

_PARTS = {"C64": "float32"}
_NUMBERS = {
    dtype.code: np.dtype(
        _PARTS.get(dtype.code) or dtype.numpy_name or getattr(ml_dtypes, dtype.torch_name)
    )
    for dtype in _ALL
}
_LIMITS = {
    code: ml_dtypes.finfo(_NUMBERS[code])  # type: ignore[no-untyped-call]
    for code in FLOATS - _PARTS.keys()
}

LARGEST = {code: float(limits.max) for code, limits in _LIMITS.items()}
"""Largest finite number of each type of real floats, by its code: those that codecs encode."""

SMALLEST = {code: float(limits.smallest_subnormal) for code, limits in _LIMITS.items()}
"""Smallest number above zero of each type of real floats."""

MANTISSA_BITS = {code: limits.nmant + 1 for code, limits in _LIMITS.items()}
"""Bits of the mantissa of each type of real floats, the leading one included."""

_SMALL = frozenset(_NUMBERS[dtype.code] for dtype in _ALL if dtype.numpy_name is None)
# Of these, torch converts blocks in 0.1 to 0.7 of the time that ml_dtypes takes.
_TORCH_CONVERTS = frozenset(kind for kind in _SMALL if kind.itemsize == 1)
# For small types the bits that tell, and what they are in an infinity or a NaN and in no finite
# number. NumPy's own test is fast only for larger types.
_NOT_FINITE = {
    _NUMBERS[code]: bits
    for code, bits in {
        "F16": (0x7C00, 0x7C00),
        "BF16": (0x7F80, 0x7F80),
        "F8_E4M3": (0x7F, 0x7F),
        "F8_E5M2": (0x7C, 0x7C),
        "F8_E4M3FNUZ": (0xFF, 0x80),
        "F8_E5M2FNUZ": (0xFF, 0x80),
        "F8_E8M0": (0xFF, 0xFF),
    }.items()
}
# Numbers looked at one by one at a time: their temporary arrays take 200 KiB.
_FEW = 4096


def unit(code: str) -> int:
    """Return the bytes of one number. A complex element is two numbers, its parts."""
    return _NUMBERS[code].itemsize


def number_type(code: str) -> np.dtype[Any]:
    """Return the type in which codecs take numbers exactly: float32 or float64."""
    return np.dtype(np.float64 if code == "F64" else np.float32)


def numbers_in(code: str, data: memoryview) -> Numbers:
    """Return the numbers in bytes of elements, in place and in their own type.

    The parts of a complex element are numbers of their own; bfloat16 and the floats of eight bits
    are types of ``ml_dtypes``.
    """
    return np.frombuffer(data, _NUMBERS[code])


def load(numbers: Numbers, out: Numbers) -> None:
    """Copy numbers of any type into a float64 array, or floats into a float32 one."""
    if numbers.dtype in _TORCH_CONVERTS:
        import torch

        torch.from_numpy(out).copy_(_as_torch(numbers))
    else:
        np.copyto(out, numbers, casting="unsafe")


def loaded(code: str, data: memoryview) -> Numbers:
    """Return the floats in bytes of elements in their ``number_type``, read-only.

    Args:
        code: Type of the elements.
        data: Their bytes, which the numbers may share.
    """
    numbers = numbers_in(code, data)
    wide = number_type(code)
    if numbers.dtype != wide:
        numbers, narrow = np.empty(len(numbers), wide), numbers
        load(narrow, numbers)
    numbers = numbers.view()
    numbers.flags.writeable = False
    return numbers


def store(numbers: Numbers, out: Numbers) -> None:
    """Round floats once to the type of ``out``, ties to even, and write them there.

    A bool is true where the number is above 0.5. A NaN of bfloat16 or eight bits keeps its sign,
    where the type has any, and no payload.
    """
    kind = out.dtype
    if kind == np.bool_:
        np.greater(numbers, 0.5, out=out)
    elif kind not in _SMALL:
        np.copyto(out, numbers, casting="unsafe")
    else:
        # Both libraries convert to these types by way of float32.
        singles = _to_odd(numbers) if numbers.dtype == np.float64 else numbers.astype(np.float32)
        if kind in _TORCH_CONVERTS:
            import torch

            _as_torch(out).copy_(torch.from_numpy(singles))
        else:
            np.copyto(out, singles, casting="unsafe")


def stored(code: str, numbers: Numbers) -> bytes:
    """Return what :func:`store` writes for a type."""
    out = np.empty(len(numbers), _NUMBERS[code])
    store(numbers, out)
    return out.tobytes()


def first_not_finite(numbers: Numbers, start: int = 0) -> int | None:
    """Return ``start`` plus the index of the first infinity or NaN; None without one."""
    if numbers.dtype in _NOT_FINITE:
        bits = numbers.view(f"u{numbers.itemsize}")
        mask, value = map(bits.dtype.type, _NOT_FINITE[numbers.dtype])
        is_special = (bits & mask) == value
        return start + int(np.argmax(is_special)) if is_special.any() else None
    finite = np.isfinite(numbers)
    return None if finite.all() else start + int(np.argmin(finite))


def _as_torch(numbers: Numbers) -> torch.Tensor:
    import torch

    bits = numbers.view(np.uint8)
    bits = bits if bits.flags.writeable else bits.copy()  # torch warns of others
    tensor: torch.Tensor = torch.from_numpy(bits).view(getattr(torch, numbers.dtype.name))
    return tensor


def _to_odd(numbers: Numbers) -> Numbers:
    """Round float64 to float32 so that a further rounding gives a single one's result.

    A number that is not exact in float32 must not look like a tie of a smaller type, so it gets an
    odd last bit. Boldo and Melquiond 2008, "Emulation of a FMA and correctly rounded sums",
    doi:10.1109/TC.2007.70819.
    """
    rounded = numbers.astype(np.float32)
    bits = rounded.view(np.uint32)
    # Ties of types with 7 bits of mantissa or fewer end in this many zeros. Few others do.
    (near,) = np.nonzero((bits & 0x7FFF) == 0)
    for first in range(0, len(near), _FEW):
        at = near[first : first + _FEW]
        exact, nearest = numbers[at], rounded[at]
        bits[at] -= np.abs(nearest) > np.abs(exact)  # towards zero
        bits[at] |= nearest != exact
    return rounded
