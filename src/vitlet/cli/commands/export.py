"""Export a run for other programs, with preprocessing, class names and a model card; its outputs are compared with the
model's first. `vitlet predict` and `vitlet serve` take exports like runs."""

from __future__ import annotations

import re
from pathlib import Path

from vitlet.cli.flags import Parser
from vitlet.errors import VitletError


def parser() -> Parser:
    """The arguments of the command."""
    parser = Parser("vitlet export", __doc__, example="vitlet export runs/photos --format onnx")
    parser.add_usual("run")
    formats = ("safetensors", "timm", "torch", "onnx", "openvino")
    parser.add_argument("--format", choices=formats, required=True, help="file format")
    parser.add_argument("--output", metavar="DIR", type=Path, help="folder to write (default: RUN/export/FORMAT)")
    about = "data type of the weights; of torch and openvino also of the arithmetic (default: float32)"
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help=about)
    parser.add_argument(
        "--license", metavar="ID", default="unknown", help="SPDX licence of the weights, for the model card"
    )
    return parser


def run(words: list[str]) -> int:
    """Run the command."""
    chosen = parser().parse_all(words)
    if not re.fullmatch(r"[A-Za-z0-9.+-]+", chosen.license):
        raise VitletError(f"--license {chosen.license!r}: needs an identifier such as apache-2.0 or cc-by-4.0.")
    from vitlet.cli.summary import say
    from vitlet.inference.export import export_run
    from vitlet.inference.runtimes import has_bfloat16

    folder, parity = export_run(
        Path(chosen.run), chosen.format, chosen.output, dtype=chosen.dtype, licence=chosen.license
    )
    say(f"compared with the model: {parity}")
    if chosen.format == "openvino" and chosen.dtype == "bfloat16" and not has_bfloat16():
        say("note: this CPU has no instructions for bfloat16: here OpenVINO computes in float32 instead.")
    say(f"export: {folder}")
    return 0
