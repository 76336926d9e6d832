"""Which image files the words of a command mean: files, folders, patterns, or a list from standard input."""

from __future__ import annotations

import glob
from collections.abc import Iterable, Sequence
from pathlib import Path

from vitlet.data.decode import IMAGE_SUFFIXES
from vitlet.errors import VitletError

STDIN = "-"


def image_files(words: Sequence[str], listed: Iterable[str] = ()) -> list[Path]:
    """The files in the order of the words; folders and patterns sorted by name, nothing hidden.

    Args:
        words: files, folders (looked through to the bottom), patterns such as ``'photos/**/*.jpg'``, or ``-`` for
            ``listed``.
        listed: lines with one file each.
    """
    found = [path for word in words for path in _meant(word, listed)]
    if not found:
        raise VitletError("no image was given: the list is empty.")
    return found


def _meant(word: str, listed: Iterable[str]) -> list[Path]:
    path = Path(word)
    if word == STDIN:
        return [_existing(line) for line in (each.rstrip("\r\n") for each in listed) if line]
    if path.is_dir():
        found = [each for each in path.rglob("*") if _is_image(each.relative_to(path)) and each.is_file()]
        problem = f"the folder {path} holds no images ({', '.join(sorted(IMAGE_SUFFIXES))})."
    elif not path.exists() and glob.has_magic(word):
        named = glob.glob(word, recursive=True)  # noqa: PTH207  a pattern may be absolute
        found, problem = [Path(each) for each in named if Path(each).is_file()], f"no file matches {word!r}."
    else:
        return [_existing(word)]
    if not found:
        raise VitletError(problem)
    return sorted(found)


def _is_image(inside: Path) -> bool:
    return inside.suffix.lower() in IMAGE_SUFFIXES and not any(part.startswith(".") for part in inside.parts)


def _existing(name: str) -> Path:
    path = Path(name)
    if not path.is_file():
        raise VitletError(f"no such image file: {path}.")
    return path
