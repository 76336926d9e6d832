"""CIFAR's batches are Python pickles, and a pickle can run any code: here it can only be data.

Nothing named in the file is ever looked up. The few names that an array needs stand for records of our own, which
only note what the file says; the array is then made from its bytes.
"""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitlet.errors import VitletError, first_line

MAX_BYTES = 512 * 2**20
"""The largest official file has 155 MB."""

_NUMBERS = {"u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8"}


class _Dtype:
    """Replacement of ``numpy.dtype`` that allows only integers."""

    def __init__(self, code: str | bytes, *rest: object) -> None:
        self.code = code.decode("ascii") if isinstance(code, bytes) else code
        self.order = "<"
        if self.code not in _NUMBERS:
            raise pickle.UnpicklingError(f"it holds an array of {self.code!r}, not of whole numbers")

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        order = state[1].decode("ascii") if isinstance(state[1], bytes) else state[1]
        self.order = order if order in ("<", ">", "|") else "<"


class _Array:
    """Stands for ``numpy.ndarray`` and the functions that make one, in their order of arguments."""

    def __init__(
        self, raw: bytes = b"", dtype: _Dtype | None = None, shape: Any = (), order: str = "C", *_: Any
    ) -> None:
        self.values: NDArray[Any] | None = None
        if dtype is not None:
            numbers = np.frombuffer(raw, dtype=dtype.order + dtype.code)
            if order not in ("C", "F") or math.prod(shape) != numbers.size:
                raise pickle.UnpicklingError(f"an array of shape {shape} does not fit its {len(raw)} bytes")
            self.values = numbers.reshape(shape, order="F" if order == "F" else "C")

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, fortran, raw = state
        self.values = _Array(raw, dtype, shape, "F" if fortran else "C").values


def _reconstruct(*_: object) -> _Array:
    """An array whose state follows."""
    return _Array()


def _encode(text: str, encoding: str = "latin1") -> bytes:
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"it uses the encoding {encoding!r}")
    return text.encode("latin1")


_STAND_INS = {
    ("numpy", "dtype"): _Dtype,
    ("numpy", "ndarray"): _Array,
    ("_codecs", "encode"): _encode,
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _reconstruct for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _Array for core in ("core", "_core")},
}


class _Reader(pickle.Unpickler):
    """Restricted unpickler: dictionaries, lists, tuples, text, bytes, numbers, and arrays of integers."""

    def find_class(self, module: str, name: str, /) -> Any:
        try:
            return _STAND_INS[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}, which is not allowed") from None


def read_pickle(path: Path) -> dict[str, Any]:
    """The dictionary in a pickle file, its keys as text and its arrays as NumPy's; no code of the file runs."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise pickle.UnpicklingError(f"it is larger than {MAX_BYTES:,} bytes")
        with path.open("rb") as file:
            content = _Reader(file, encoding="bytes").load()
        if not isinstance(content, dict):
            raise pickle.UnpicklingError(f"it holds a {type(content).__name__}, not a dictionary")
        return {_text(key): item.values if isinstance(item, _Array) else item for key, item in content.items()}
    except Exception as problem:  # a broken pickle may raise anything
        raise VitletError(
            f"{path} is not a CIFAR batch: {first_line(problem)}. Download the official archive again."
        ) from problem


def _text(key: object) -> str:
    return key.decode("utf-8") if isinstance(key, bytes) else str(key)
