"""Conversion of values from flags and YAML files to the types of settings, with error messages."""

from __future__ import annotations

import reprlib
import types
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Union, get_args, get_origin

from vitlet.errors import VitletError

ImageSize = tuple[int, int]  # height, width
Names = tuple[str, ...]


def is_number(value: Any, below: float = float("inf")) -> bool:
    """Whether a value of a JSON or YAML file is a number (not a boolean) whose magnitude is less than ``below``."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < below


def shown(value: Any) -> str:
    """A value for an error message, truncated: a few lines of YAML can expand to gigabytes."""
    short = reprlib.Repr()
    short.maxlevel, short.maxstring, short.maxother, short.maxlong = 3, 200, 200, 200
    return short.repr(value)


def coerce(value: Any, hint: Any, where: str) -> Any:
    """``value``, a flag's text or a YAML value, converted to the type ``hint``; `VitletError` if that is impossible."""
    if get_origin(hint) in (Union, types.UnionType):
        choices = [choice for choice in get_args(hint) if choice is not type(None)]
        if value is None or (value == "none" and "none" not in get_args(choices[0])):
            return None
        return coerce(value, choices[0], where)
    if get_origin(hint) is Literal:
        if value in get_args(hint):
            return value
        raise VitletError(f"{where} must be one of {', '.join(map(str, get_args(hint)))}, got {shown(value)}.")
    if hint == ImageSize:
        return _image_size(value, where)
    if hint == Names:
        if isinstance(value, str) or not isinstance(value, Sequence) or any(isinstance(one, list) for one in value):
            raise VitletError(f"{where} must be a list of names, got {shown(value)}.")
        return tuple(str(name) for name in value)
    if get_origin(hint) is Mapping or hint is dict:
        if isinstance(value, Mapping):
            return dict(value)
        raise VitletError(f"{where} must be NAME: VALUE pairs, got {shown(value)}.")
    try:
        return _scalar(value, hint)
    except (TypeError, ValueError):
        wanted = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}[hint]
        raise VitletError(f"{where} must be {wanted}, got {shown(value)}.") from None


def _scalar(value: Any, hint: type) -> Any:
    if hint is bool:
        if isinstance(value, str) and value.lower() in ("true", "false"):
            return value.lower() == "true"
        if not isinstance(value, bool):
            raise TypeError
        return value
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise TypeError
    if hint is int and isinstance(value, float) and not value.is_integer():
        raise ValueError
    return hint(value)


def _image_size(value: Any, where: str) -> ImageSize:
    parts = str(value).lower().split("x") if isinstance(value, (str, int)) else value
    try:
        sides = [int(part) for part in parts]
        if 1 <= len(sides) <= 2 and min(sides) > 0:
            return sides[0], sides[-1]
    except (TypeError, ValueError):
        pass
    raise VitletError(f"{where} must be a side such as 64, or HEIGHTxWIDTH such as 64x96, got {shown(value)}.")
