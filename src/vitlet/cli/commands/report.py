"""Write one self-contained HTML file on a run: settings, accuracy, curves, errors, attention. Several runs are compared
side by side; a run that is still training works too."""

from __future__ import annotations

from pathlib import Path

from vitlet.cli.flags import Parser
from vitlet.errors import VitletError


def parser() -> Parser:
    """The arguments of the command."""
    parser = Parser("vitlet report", __doc__, example="vitlet report runs/baseline runs/drloc --output report.html")
    parser.add_argument("runs", metavar="RUN", nargs="+", type=Path, help="run folders, or one study or learning curve")
    about = "HTML file to write, for a study a folder (default: RUN/report.html; several runs: report.html)"
    parser.add_argument("--output", metavar="FILE", type=Path, help=about)
    parser.add_argument(
        "--images", metavar="N", type=int, default=5000, help="number of images to predict at most (default: 5000)"
    )
    parser.add_usual("--device")
    return parser


def run(words: list[str]) -> int:
    """Run the command."""
    chosen = parser().parse_all(words)
    from vitlet.analysis.report.page import report_runs
    from vitlet.analysis.report.transfer import job_of, report_transfer
    from vitlet.cli.summary import say
    from vitlet.config import RunConfig
    from vitlet.experiments.learn_curve.record import is_curve
    from vitlet.experiments.learn_curve.report import report_curve
    from vitlet.experiments.studies.report import is_study, report_study
    from vitlet.training.search_folder import is_search, read_search

    runs = chosen.runs
    output = chosen.output or (runs[0] / "report.html" if len(runs) == 1 else Path("report.html"))
    searches = [named for named in runs if is_search(named)]
    members = {named: [named / member.folder for member in read_search(named).members] for named in searches}
    runs = [run for named in runs for run in members.get(named, [named])]
    if not runs:
        raise VitletError(f"the search {searches[0]} has no finished member yet; its command shows how far it is.")
    if any(map(is_curve, runs)):
        if len(runs) > 1:
            raise VitletError("a report is on one learning curve or on runs; found both. Name one curve, or only runs.")
        say(f"report: {report_curve(runs[0], output)}")
    elif is_study(runs[0]):
        if len(runs) > 1:
            raise VitletError(
                "a report is on one study or on runs; found a study beside others. Name one study, or only runs."
            )
        for file in report_study(runs[0], chosen.output):
            say(f"written: {file}")
    elif job_of(runs[0]) != RunConfig.JOB:
        say(f"report: {report_transfer(runs, output)}")
    else:
        from vitlet.analysis.report.search import search_section

        first = [search_section(named) for named in searches]
        say(f"report: {report_runs(runs, output, most=chosen.images, device=chosen.device, first=first)}")
    return 0
