"""Libraries that only a part of the project needs."""

from __future__ import annotations

from importlib.util import find_spec

from vitlet.errors import VitletError


def require(library: str, extra: str) -> None:
    """Refuse with the name of the extra if a library is not installed."""
    if find_spec(library) is None:
        raise VitletError(f"{library} is not installed. Run: pip install 'vitlet[{extra}]'.")
