"""Answers on images as CSV, JSON, and embeddings as files."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from vitlet.errors import VitletError, first_line, require_extra
from vitlet.inference.ensemble import Answer

EMBEDDINGS = (".npy", ".parquet")


def check_targets(output: Path | None, embed: Path | None) -> None:
    """Refuse files that cannot be written, before anything is computed."""
    for path in (output, embed):
        if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
            raise VitletError(f"cannot write {path}: it is a folder, or the folder around it does not exist.")
    if embed is not None:
        if embed.suffix not in EMBEDDINGS:
            raise VitletError(f"--embed {embed}: needs a name that ends in .npy or .parquet.")
        if embed.suffix == ".parquet":
            require_extra("pyarrow", "tables", "--embed with Parquet")


def as_json(answers: Sequence[Answer]) -> str:
    """A list of images, each with its classes and their probabilities."""
    plain = [{"image": answer.image, "classes": answer.classes} for answer in answers]
    return json.dumps(plain, ensure_ascii=False, indent=2) + "\n"


def as_csv(answers: Sequence[Answer]) -> str:
    """One row per image: ``image,class,probability``, then ``class_2,probability_2`` and so on."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    most = max((len(answer.classes) for answer in answers), default=1)
    numbers = ["" if rank == 1 else f"_{rank}" for rank in range(1, most + 1)]
    writer.writerow(["image", *(name + number for number in numbers for name in ("class", "probability"))])
    for answer in answers:
        guesses = [(inert(guess["class"]), f"{guess['probability']:.6f}") for guess in answer.classes]
        writer.writerow([inert(answer.image), *(cell for guess in guesses for cell in guess)])
    return text.getvalue()


def inert(cell: str) -> str:
    """A text that a spreadsheet does not take for a formula."""
    return f"'{cell}" if cell[:1] in ("=", "+", "-", "@", "\t", "\r") else cell


def write_embeddings(answers: Sequence[Answer], path: Path) -> None:
    """``.npy``: float32 ``(images, features)`` in the order of answers; ``.parquet``: with the image beside each."""
    rows = torch.stack([answer.embedding for answer in answers if answer.embedding is not None])
    try:
        if path.suffix == ".npy":
            np.save(path, rows.numpy())
            return
        from pyarrow import parquet, table

        columns = {"image": [answer.image for answer in answers], "embedding": list(rows.numpy())}
        parquet.write_table(table(columns), path)
    except OSError as problem:
        raise VitletError(f"cannot write {path}: {first_line(problem)}.") from problem
