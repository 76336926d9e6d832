"""Image files from command-line arguments: files, folders, patterns, or a list on standard input."""

from __future__ import annotations

import glob
from collections.abc import Iterable, Sequence
from pathlib import Path

from vitlet.data.archives import ArchiveTree
from vitlet.data.decode import IMAGE_SUFFIXES, describe_others, is_hidden
from vitlet.data.images import Files, ImageSet
from vitlet.data.sources import ARCHIVE_SUFFIXES
from vitlet.errors import VitletError

STDIN = "-"


def image_files(words: Sequence[str], listed: Iterable[str] = (), others: list[Path] | None = None) -> list[Path]:
    """The files in the order of the words; folders and patterns sorted by name, nothing hidden.

    Args:
        words: files, folders (looked through to the bottom), patterns such as ``'photos/**/*.jpg'``, or ``-`` for
            ``listed``.
        listed: lines with one file each.
        others: gets the files of folders that are not read.
    """
    others = [] if others is None else others
    found = [path for word in words for path in _meant(word, listed, others)]
    if not found:
        raise VitletError("no image was given: the list is empty.")
    return found


def pool_images(words: Sequence[str], listed: Iterable[str] = (), others: list[Path] | None = None) -> ImageSet:
    """An unlabelled image set of files and folders; a single zip or tar file is read in place."""
    if len(words) == 1 and Path(words[0]).is_file() and Path(words[0]).suffix.lower() in ARCHIVE_SUFFIXES:
        tree = ArchiveTree.open(Path(words[0]))
        if not tree.paths:
            raise VitletError(
                f"the archive {words[0]} holds no images ({describe_others(tree.others) or 'it is empty'})."
            )
        return tree.images(tree.paths, [0] * len(tree.paths))
    paths = list(dict.fromkeys(image_files(words, listed, others)))
    return Files(tuple(paths), (0,) * len(paths))


def _meant(word: str, listed: Iterable[str], others: list[Path]) -> list[Path]:
    path = Path(word)
    if word == STDIN:
        return [_existing(line) for line in (each.rstrip("\r\n") for each in listed) if line]
    if path.is_dir():
        files = [each for each in path.rglob("*") if each.is_file() and not is_hidden(each.relative_to(path))]
        found = [each for each in files if each.suffix.lower() in IMAGE_SUFFIXES]
        others += sorted({*files} - {*found})
        problem = f"the folder {path} contains no images ({describe_others(others) or 'it is empty'})."
    elif not path.exists() and glob.has_magic(word):
        named = glob.glob(word, recursive=True)  # noqa: PTH207  a pattern may be absolute
        found, problem = [Path(each) for each in named if Path(each).is_file()], f"no file matches {word!r}."
    else:
        return [_existing(word)]
    if not found:
        raise VitletError(problem)
    return sorted(found)


def _existing(name: str) -> Path:
    path = Path(name)
    if not path.is_file():
        raise VitletError(f"no such image file: {path}.")
    return path
