"""The one error a person is meant to read: what was found, what was needed, what to do."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable
from importlib import import_module
from typing import Any

from vitlet.processes import this_process


class VitletError(Exception):
    """Bad input or an impossible request, said in one sentence; the command line exits with ``code``."""

    code = 2
    everywhere = True
    """Of several processes, whether all of them meet this error, so that the first one's word is enough."""


class SkippedImagesError(VitletError):
    """Some images could not be read and were passed over; everything else was done."""

    code = 3


class NotFiniteError(VitletError):
    """A loss or gradient that is not a number, or infinite."""

    code = 4


class LostProcessError(VitletError):
    """A process that this one needs is gone: a loading process, or another one that trains."""

    code = 5


class TooShortError(VitletError):
    """A time that is too short for one pass over the images."""


class InterruptedRunError(VitletError):
    """The run was asked to stop, and has saved everything; the code means: try again later."""

    code = 75


def nearest(word: str, known: Iterable[str], count: int = 3) -> str:
    """A hint such as ``did you mean 'resnet50' or 'resnet50d'?`` (empty if nothing is close)."""
    matches = difflib.get_close_matches(word, list(known), n=count, cutoff=0.5)
    if not matches:
        return ""
    return " Did you mean " + " or ".join(repr(match) for match in matches) + "?"


def first_line(problem: Exception) -> str:
    """What another library complained of, short enough for a sentence."""
    lines = [line for line in str(problem).strip().splitlines() if line.strip()]
    return (lines[0] if lines else type(problem).__name__).rstrip(".")


def require_extra(module: str, extra: str, what: str) -> Any:
    """Import a module of an optional dependency, or raise an error that names the extra to install.

    Args:
        module: to import, such as ``ray``.
        extra: of vitlet that brings it.
        what: needs it, as the beginning of a sentence: "--engine ray", "reading Parquet".
    """
    try:
        return import_module(module)
    except ImportError as problem:
        raise VitletError(f"{what} needs {module.partition('.')[0]}: pip install 'vitlet[{extra}]'.") from problem


def fail(problem: VitletError) -> int:
    """Print the sentence, unless another process of the same run does; the exit code."""
    process = this_process()
    if process.first:
        print(f"vitlet: {problem}", file=sys.stderr)
    elif not problem.everywhere:
        print(f"vitlet, process {process.rank}: {problem}", file=sys.stderr)
    return problem.code
