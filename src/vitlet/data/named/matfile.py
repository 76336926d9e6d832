"""Reader of integer arrays in MATLAB files, which refuses everything else."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitlet.errors import VitletError, first_line

MAX_ELEMENTS = 2**31
"""The largest official array, SVHN's training images, has 225 million."""

_KINDS = {"uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "single", "double"}


def read_numbers(path: Path, *names: str) -> list[NDArray[Any]]:
    """The named arrays, their kind and size looked at before they are read; whole numbers only."""
    from scipy.io import loadmat, whosmat

    try:
        with path.open("rb") as file:
            content = {name: (shape, kind) for name, shape, kind in whosmat(file)}
            for name in names:
                if name not in content:
                    raise ValueError(f"it has no {name!r}, but {', '.join(sorted(content)) or 'nothing'}")
                shape, kind = content[name]
                if kind not in _KINDS or math.prod(shape) > MAX_ELEMENTS:
                    raise ValueError(f"its {name!r} is a {kind} of shape {shape}, not an array of numbers that fits")
            file.seek(0)
            arrays = loadmat(file, variable_names=list(names))
        return [_whole(name, arrays[name]) for name in names]
    except Exception as problem:  # a broken file may raise anything
        raise VitletError(
            f"cannot read {path}: {first_line(problem)}. The official file with {', '.join(names)} is needed;"
            " get it again."
        ) from problem


def _whole(name: str, values: NDArray[Any]) -> NDArray[Any]:
    """MATLAB keeps most numbers as floats."""
    if values.dtype.kind != "f":
        return values
    if not np.array_equal(values, np.rint(values)):
        raise ValueError(f"its {name!r} holds fractions")
    return values.astype(np.int64)
