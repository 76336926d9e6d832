"""One HTML file that opens anywhere: what was trained, how well it does, where it goes wrong, what it looks at. Several
runs are shown side by side. A run that is still training works."""

from __future__ import annotations

from pathlib import Path

from vitlet.cli.flags import Parser
from vitlet.errors import VitletError


def run(words: list[str]) -> int:
    """Run the command."""
    parser = Parser("vitlet report", __doc__)
    parser.add_argument("runs", metavar="RUN", nargs="+", type=Path, help="run folders; or one study or learning curve")
    about = "the HTML file [RUN/report.html, or report.html here]; of a study, a folder"
    parser.add_argument("--output", metavar="FILE", type=Path, help=about)
    parser.add_argument("--images", metavar="N", type=int, default=5000, help="predict at most so many images [5000]")
    parser.add_usual("--device")
    chosen = parser.parse_all(words)
    from vitlet.analysis.report.page import report_runs
    from vitlet.analysis.report.transfer import job_of, report_transfer
    from vitlet.cli.summary import say
    from vitlet.config import RunConfig
    from vitlet.experiments.learn_curve.record import is_curve
    from vitlet.experiments.learn_curve.report import report_curve
    from vitlet.experiments.studies.report import is_study, report_study
    from vitlet.training.search_folder import is_search

    runs = chosen.runs
    output = chosen.output or (runs[0] / "report.html" if len(runs) == 1 else Path("report.html"))
    runs = [run for named in runs for run in (sorted((named / "members").iterdir()) if is_search(named) else [named])]
    if any(map(is_curve, runs)):
        if len(runs) > 1:
            raise VitletError("a learning curve is reported by itself; name one, or runs.")
        say(f"report: {report_curve(runs[0], output)}")
    elif is_study(runs[0]):
        if len(runs) > 1:
            raise VitletError("a study is reported by itself; name one study, or runs.")
        for file in report_study(runs[0], chosen.output):
            say(f"written: {file}")
    elif job_of(runs[0]) != RunConfig.JOB:
        say(f"report: {report_transfer(runs, output)}")
    else:
        say(f"report: {report_runs(runs, output, most=chosen.images, device=chosen.device)}")
    return 0
