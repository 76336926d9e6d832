"""``vitlet report``."""

from __future__ import annotations

from pathlib import Path

from vitlet.cli.flags import Parser
from vitlet.errors import VitletError


def run(words: list[str]) -> int:
    """Run the command."""
    parser = Parser(
        prog="vitlet report",
        description="One HTML file that opens anywhere: what was trained, how well it does, where it goes wrong, what"
        " it looks at. Several runs are shown side by side. A run that is still training works.",
    )
    parser.add_argument("runs", metavar="RUN", nargs="+", help="run folders; or one study, for its tables")
    parser.add_argument(
        "--output",
        metavar="FILE",
        help="the HTML file [RUN/report.html, or report.html here]; of a study, a folder",
    )
    parser.add_argument("--images", metavar="N", type=int, default=5000, help="predict at most so many images [5000]")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps [auto]")
    chosen = parser.parse_all(words)
    from vitlet.analysis.report.page import report_runs
    from vitlet.analysis.report.transfer import job_of, report_transfer
    from vitlet.cli.summary import say
    from vitlet.config import RunConfig
    from vitlet.experiments.studies.report import is_study, report_study

    runs = [Path(run) for run in chosen.runs]
    output = Path(chosen.output or (runs[0] / "report.html" if len(runs) == 1 else "report.html"))
    if is_study(runs[0]):
        if len(runs) > 1:
            raise VitletError("a study is reported by itself; name one study, or runs.")
        for file in report_study(runs[0], Path(chosen.output) if chosen.output else None):
            say(f"written: {file}")
        return 0
    if job_of(runs[0]) != RunConfig.JOB:
        say(f"report: {report_transfer(runs, output)}")
        return 0
    say(f"report: {report_runs(runs, output, most=chosen.images, device=chosen.device)}")
    return 0
