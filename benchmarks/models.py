"""Every model that timm registers, put through vitlet once: ``python benchmarks/models.py [--real]``.

Without options: each name is built without memory for its weights (PyTorch's meta device), joined with DRLoc and the
criterion, and one training step is traced at the model's own image size; where a model reads values and so cannot run
on the meta device, it runs for real if it is not too large. Writes ``results/models.csv``; about 25 minutes on one
core, and what is already in the file is not run again.

With ``--real``: the smallest model of each timm module runs on real numbers; its logits are compared with the bare
model's and DRLoc alone is differentiated. Reads the parameter counts of ``results/models.csv``, writes
``results/models_real.csv``.
"""

from __future__ import annotations

import argparse
import csv
import os
import platform
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from datetime import date
from functools import partial
from pathlib import Path

import timm
import torch
from timm.models import model_entrypoint
from torch import Tensor, nn

import vitlet
from vitlet.tokens.features import Features

RESULTS = Path(__file__).parent / "results"
LARGE = 300_000_000  # parameters, beyond which nothing is run for real
TOLERANCE = 1e-5  # of the logits, relative to the largest (at least 1)


@dataclass
class Row:
    """What became of one model.

    Attributes:
        result: ok; refused: vitlet said why not; failed: anything else; skipped: too large for ``--real``.
        device: meta, or cpu: real numbers.
        grid: channels x rows x columns of the last grid at the model's own image size.
        prefix_tokens: class and register tokens, as far as the model says.
        gradients: whether the loss's gradients reach the model's first trainable parameter (``--real``: its first
            convolution or linear layer).
        difference: of the logits from the bare model's, relative to the largest (``--real`` only).
        reason: one line, if not ok.
    """

    name: str
    module: str
    parameters: int = 0
    result: str = "failed"
    device: str = ""
    grid: str = ""
    prefix_tokens: str = ""
    gradients: str = ""
    difference: str = ""
    reason: str = ""


def join(model: nn.Module, row: Row) -> tuple[vitlet.Objective, list[Features]]:
    """Join a model with DRLoc; the list receives the features of every forward pass to come."""
    backbone = vitlet.TimmBackbone(model)
    objective = vitlet.Objective(backbone, [vitlet.Term(vitlet.DRLoc(), 0.5)])
    seen: list[Features] = []
    backbone.register_forward_hook(lambda module, inputs, features: seen.append(features))
    row.prefix_tokens = str(getattr(model, "num_prefix_tokens", ""))
    return objective, seen


def judge(model: nn.Module, features: Features, first: Tensor, row: Row) -> None:
    """Check the logits' shape and that gradients arrived at the first parameter; raises if not."""
    shape = features.last.shape
    row.grid = f"{shape.channels}x{shape.height}x{shape.width}"
    row.gradients = "yes" if first.grad is not None else "no"
    classes = int(getattr(model, "num_classes", 0))
    with torch.no_grad():  # a model without classes answers with pooled features: only the model knows how many
        expected = (2, classes) if classes else tuple(model(features.images).shape)
    assert features.logits is not None
    found = tuple(features.logits.shape)
    assert found == expected, f"logits of shape {found}, needed {expected}"
    assert row.gradients == "yes", "no gradient in the first parameter"
    row.result = "ok"


def trace(name: str, device: str) -> Row:
    """One training step without looking at numbers: shapes, loss and backward."""
    row = Row(name, module_of(name), device=device)
    try:
        with torch.device(device):
            model = timm.create_model(name)
            row.parameters = sum(parameter.numel() for parameter in model.parameters())
            objective, seen = join(model, row)
            objective.train()
            size = (2, objective.backbone.in_chans, *objective.backbone.img_size)
            outcome = objective(torch.zeros(size), torch.zeros(2, dtype=torch.long))
            assert outcome.loss.shape == (), f"a loss of shape {tuple(outcome.loss.shape)}"
            outcome.loss.backward()
            judge(model, seen[-1], next(p for p in model.parameters() if p.requires_grad), row)
    except Exception as problem:
        complain(row, problem)
    return row


def sweep(name: str) -> Row:
    """`trace` on the meta device, or else for real."""
    row = trace(name, "meta")
    return trace(name, "cpu") if row.result == "failed" and row.parameters <= LARGE else row


def compare(name: str, parameters: int) -> Row:
    """Real numbers: logits against the bare model's, and the gradients of DRLoc alone."""
    row = Row(name, module_of(name), parameters, device="cpu")
    if parameters > LARGE:
        row.result, row.reason = "skipped", f"more than {LARGE / 1e6:.0f} million parameters"
        return row
    torch.manual_seed(0)
    try:
        model = timm.create_model(name)
        with torch.no_grad():
            for parameter in model.parameters():  # so that no head or branch stays at 0
                parameter.add_(torch.randn_like(parameter), alpha=0.02)
        objective, seen = join(model, row)
        objective.eval()
        images = torch.randn(2, objective.backbone.in_chans, *objective.backbone.img_size)
        with torch.no_grad():
            expected = model(images)
        outcome = objective(images)
        difference = (outcome.logits - expected).abs().max() / expected.abs().max().clamp(min=1)
        row.difference = f"{difference.item():.1e}"
        outcome.loss.backward()
        # Not the first parameter: that may be a class token which only the classifier reads.
        layers = (module for module in model.modules() if isinstance(module, nn.Conv2d | nn.Linear))
        judge(model, seen[-1], next(layers).weight, row)
        gradients = torch.stack([p.grad.abs().sum() for p in model.parameters() if p.grad is not None])
        assert (expected[0] != expected[1]).any(), "the images do not reach the logits"
        assert difference <= TOLERANCE, "logits differ from the bare model's"  # false for NaN too
        assert outcome.loss.isfinite(), f"a loss of {outcome.loss}"
        assert gradients.isfinite().all() and gradients.sum() > 0, "gradients are 0 or not finite"
    except Exception as problem:
        complain(row, problem)
    return row


def complain(row: Row, problem: Exception) -> None:
    """Note why a model is not ok; vitlet's own refusals have no other exception behind them."""
    refused = isinstance(problem, vitlet.VitletError) and problem.__cause__ is None
    row.result = "refused" if refused else "failed"
    row.reason = f"{type(problem).__name__}: {' '.join(str(problem).split())}"[:250]


def module_of(name: str) -> str:
    """Module of ``timm.models`` that defines a model."""
    return str(model_entrypoint(name).__module__).rpartition(".")[2]


def header(command: str) -> str:
    """First line of a results file."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    processor = next((line.split(": ")[1] for line in lines if line.startswith("model name")), platform.processor())
    software = f"timm {timm.__version__}, torch {torch.__version__}"
    return f"# {command}; {software}; {date.today()}; {processor}, {os.cpu_count()} cores, 1 thread used"


def read(path: Path) -> list[dict[str, str]]:
    """Rows of a results file made with this version of timm, else none."""
    lines = path.read_text().splitlines() if path.exists() else [""]
    return list(csv.DictReader(lines[1:])) if f"timm {timm.__version__}," in lines[0] else []


def run(path: Path, command: str, jobs: Mapping[str, Callable[[], Row]]) -> None:
    """Run the jobs whose names are not in the file yet, row by row, then sum up."""
    done = {row["name"] for row in read(path)}
    left = [name for name in jobs if name not in done]
    with path.open("a" if done else "w", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)], lineterminator="\n")
        if not done:
            file.write(header(command) + "\n")
            writer.writeheader()
        start = time.monotonic()
        for number, name in enumerate(left, start=1):
            row = jobs[name]()
            writer.writerow(asdict(row))
            file.flush()
            minutes = (time.monotonic() - start) / number * (len(left) - number) / 60
            progress = f"[{number}/{len(left)}, {minutes:.0f} min left]"
            print(progress, f"{name}: {row.result} {row.grid} {row.reason[:90]}", flush=True)
    rows = read(path)
    counts = Counter(row["result"] for row in rows)
    print(f"{len(rows)} names:", ", ".join(f"{count} {result}" for result, count in counts.items()))
    print(sum("no forward_intermediates" in row["reason"] for row in rows), "refused for lack of forward_intermediates")


def main() -> None:
    """Run the sweep, or the real comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--real", action="store_true", help="smallest model of each module, on real numbers")
    real: bool = parser.parse_args().real
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # timm's, about its own models
    RESULTS.mkdir(exist_ok=True)
    if not real:
        own = (name for name in timm.list_models() if model_entrypoint(name).__module__.startswith("timm."))
        jobs = {name: partial(sweep, name) for name in own}
        run(RESULTS / "models.csv", "python benchmarks/models.py", jobs)
        return
    smallest: dict[str, tuple[bool, int, str]] = {}
    for row in read(RESULTS / "models.csv"):  # one that is ok before one that is not
        rank = (row["result"] != "ok", int(row["parameters"]), row["name"])
        smallest[row["module"]] = min(rank, smallest.get(row["module"], rank))
    jobs = {name: partial(compare, name, parameters) for _, parameters, name in smallest.values()}
    run(RESULTS / "models_real.csv", "python benchmarks/models.py --real", jobs)


if __name__ == "__main__":
    main()
