"""Errors with messages for the user: what was found, what was needed, what to do."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable
from importlib import import_module
from typing import Any

from vitlet.processes import this_process


class VitletError(Exception):
    """Invalid input or an impossible request; the command line prints the message and exits with ``code``.

    Example:
        >>> try:
        ...     vitlet.train(vitlet.RunConfig(data="absent"))
        ... except vitlet.VitletError as problem:
        ...     print(problem)
    """

    code = 2
    everywhere = True
    """Whether all processes of a run raise this error, so that only the first prints it."""


class SkippedImagesError(VitletError):
    """Some images could not be read and were skipped; the others were processed."""

    code = 3


class NotFiniteError(VitletError):
    """A loss or gradient that is not a number, or infinite."""

    code = 4


class LostProcessError(VitletError):
    """Another process of the run has ended: a data-loading or a training process."""

    code = 5


class TooShortError(VitletError):
    """A time that is too short for one pass over the images."""


class InterruptedRunError(VitletError):
    """The run was stopped by a signal and has saved its state; the exit code means: try again later."""

    code = 75


def nearest(word: str, known: Iterable[str], count: int = 3) -> str:
    """A hint such as ``did you mean 'resnet50' or 'resnet50d'?`` (empty if nothing is close)."""
    matches = difflib.get_close_matches(word, list(known), n=count, cutoff=0.5)
    if not matches:
        return ""
    return " Did you mean " + " or ".join(repr(match) for match in matches) + "?"


def first_line(problem: Exception) -> str:
    """First line of another library's error message that has words; else the kind of the error."""
    lines = [line for line in str(problem).strip().splitlines() if any(map(str.isalpha, line))]
    return (lines[0] if lines else type(problem).__name__).rstrip(".")


def require_extra(module: str, extra: str, what: str) -> Any:
    """Import a module of an optional dependency, or raise an error that names the extra to install.

    Args:
        module: module to import, such as ``ray``.
        extra: extra of vitlet that installs it.
        what: feature that needs it, as the subject of the message: "--engine ray", "reading Parquet".
    """
    try:
        return import_module(module)
    except ImportError as problem:
        raise VitletError(f"{what} needs {module.partition('.')[0]}: pip install 'vitlet[{extra}]'.") from problem


def fail(problem: VitletError) -> int:
    """Print the error message, unless another process of the same run does; returns the exit code."""
    process = this_process()
    if process.first:
        print(f"vitlet: {problem}", file=sys.stderr)
    elif not problem.everywhere:
        print(f"vitlet, process {process.rank}: {problem}", file=sys.stderr)
    return problem.code
