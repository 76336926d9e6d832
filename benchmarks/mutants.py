"""Faults put into the code on purpose, one at a time, and whether the tests notice.

Each mutant changes one place of a module: a comparison, an arithmetic operator, a number by one, a truth value, a
condition, ``and`` and ``or``, ``not``, or a return value that is dropped. It is killed if one of the module's test
files (``benchmarks/mutants.yaml``) fails or does not end. Texts, annotations, decorators, assertions, ``zip``'s strict
and what is only raised as an error are left as they are. The places are drawn by a seed, and a larger sample contains
a smaller one.
Mutants that nobody can tell from the original are named in the same file with a reason each. They are tried too, for
a kill would refute the reason, but do not count. Begun again with the same ``--work``, a mutant of an unchanged module
that was killed stays killed, and a survivor is tried again if its tests have changed.
"""

from __future__ import annotations

import argparse
import ast
import copy
import hashlib
import json
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
WARM = ("torch", "torch._dynamo", "torchvision.transforms.v2", "timm", "scipy.stats", "sklearn.metrics")
"""What a mutant finds imported: all that takes long, and nothing of vitlet."""
KNOWN: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
LOG = ROOT / "runs" / "mutants.log"
"""What the last tests printed."""
UNREACHED = 99
"""Exit status of tests that never imported the module."""
COMPARED = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
COMPUTED = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.BitXor: ast.BitOr,
    ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip


class Mutant(NamedTuple):
    """A place of a module, and other code for it: the number of the node, and which of its changes."""

    module: str
    line: int
    column: int
    text: str
    change: str
    number: int
    choice: int

    @property
    def reason(self) -> str | None:
        """Why it is no fault at all, if somebody said so."""
        own = {"module": self.module, "at": self.line, "line": self.text, "column": self.column, "change": self.change}
        return next((each["reason"] for each in KNOWN["equivalent"] if each.items() <= {**each, **own}.items()), None)


def path_of(module: str) -> Path:
    """The file of a module such as ``tokens/views``."""
    return ROOT / "src" / "vitlet" / f"{module}.py"


def counted(node: ast.AST) -> Iterator[ast.AST]:
    """A node and those inside that tests can be asked about."""
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "format_spec"):
            continue
        for each in value if isinstance(value, list) else [value]:
            alias = isinstance(node, ast.Module) and isinstance(getattr(each, "value", None), ast.Subscript)
            guard = isinstance(each, (ast.Raise, ast.Assert)) or getattr(each, "arg", None) == "strict"  # of zip
            if isinstance(each, ast.AST) and not guard and not alias:
                yield from counted(each)


def changes(node: ast.AST) -> list[ast.AST]:
    """Other nodes for this one."""
    match node:
        case ast.Compare(left, ops, comparators):
            others = [[*ops[:at], COMPARED[type(op)](), *ops[at + 1 :]] for at, op in enumerate(ops)]
            return [ast.Compare(left, other, comparators) for other in others]
        case ast.BinOp(left, op, right) if type(op) in COMPUTED:
            return [ast.BinOp(left, COMPUTED[type(op)](), right)]
        case ast.AugAssign(target, op, value) if type(op) in COMPUTED:
            return [ast.AugAssign(target, COMPUTED[type(op)](), value)]
        case ast.Constant(bool() as value):
            return [ast.Constant(not value)]
        case ast.Constant(int() | float() as value):
            return [ast.Constant(value + 1)]
        case ast.BoolOp(op, values):
            return [ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)]
        case ast.UnaryOp(ast.Not(), operand):
            return [operand]
        case ast.Return(ast.Constant(None)):
            return []
        case ast.Return(ast.AST()):
            return [ast.Return(ast.Constant(None))]
        case ast.If(ast.Name() | ast.Attribute() | ast.Call() as test, body, orelse):
            return [ast.If(ast.UnaryOp(ast.Not(), test), body, orelse)]
        case ast.IfExp(ast.Name() | ast.Attribute() | ast.Call() as test, body, orelse):
            return [ast.IfExp(ast.UnaryOp(ast.Not(), test), body, orelse)]
    return []


def mutants_of(module: str) -> list[Mutant]:
    """All of a module, in the order of its text."""
    source = path_of(module).read_text(encoding="utf-8")
    lines = source.splitlines()
    found = []
    for number, node in enumerate(counted(ast.parse(source))):
        for choice, new in enumerate(changes(node)):
            assert isinstance(node, (ast.expr, ast.stmt))
            was, now = (ast.unparse(ast.fix_missing_locations(each)).splitlines()[0] for each in (node, new))
            text = lines[node.lineno - 1].strip()
            found.append(Mutant(module, node.lineno, node.col_offset, text, f"{was} -> {now}", number, choice))
    return found


def mutated(mutant: Mutant) -> ast.Module:
    """The tree of the module with its one change."""
    tree = ast.parse(path_of(mutant.module).read_text(encoding="utf-8"))
    old = list(counted(tree))[mutant.number]
    new = ast.copy_location(changes(copy.deepcopy(old))[mutant.choice], old)
    for parent in ast.walk(tree):
        for name, value in ast.iter_fields(parent):
            if value is old:
                setattr(parent, name, new)
            elif isinstance(value, list):
                value[:] = [new if each is old else each for each in value]
    return ast.fix_missing_locations(tree)


class Hook(MetaPathFinder, SourceFileLoader):
    """Finds one module of vitlet, and loads it from a tree instead of its file."""

    def __init__(self, module: str, tree: ast.Module) -> None:
        name = f"vitlet.{module.replace('/', '.')}".removesuffix(".__init__")
        super().__init__(name, str(path_of(module)))
        self.tree, self.used = tree, False

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:  # type: ignore[override]
        """The module's, for its name alone."""
        return spec_from_file_location(fullname, self.path, loader=self) if fullname == self.name else None

    def get_code(self, fullname: str) -> CodeType:
        """Of the tree, whatever a cache holds."""
        self.used = True
        return compile(self.tree, self.path, "exec", dont_inherit=True)


def run_tests(module: str, tree: ast.Module) -> int:
    """In a process of its own: the status of the module's tests, with this tree in its place."""
    os.setsid()
    log = os.open(LOG, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    for stream in range(3):
        os.dup2(log, stream)
    hook = Hook(module, tree)
    sys.meta_path.insert(0, hook)
    files = [str(ROOT / "tests" / file) for file in KNOWN["tests"][module]]
    options = ["-x", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning", "-m", "not heavy"]
    status = pytest.main([*options, "-k", f"not ({' or '.join(KNOWN['without'])})", *files])
    return int(status) if hook.used else UNREACHED


def outcome(module: str, tree: ast.Module, limit: float) -> str:
    """What the tests of a module say within so many seconds: survived, killed, timeout or unreached."""
    child = os.fork()
    if not child:
        status = 1
        try:
            status = run_tests(module, tree)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(status)
    ended, status, until = 0, 0, time.monotonic() + limit
    while not ended and time.monotonic() < until:
        time.sleep(0.02)
        ended, status = os.waitpid(child, os.WNOHANG)
    with suppress(ProcessLookupError):  # with what it may have started
        os.killpg(child, signal.SIGKILL)
    if not ended:
        os.waitpid(child, 0)
        return "timeout"
    return {0: "survived", UNREACHED: "unreached"}.get(os.waitstatus_to_exitcode(status), "killed")


def digest(*files: Path) -> str:
    """Of the contents of files."""
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()[:16]


class Memory:
    """Outcomes by mutant, in a file; a kill holds for a module's text, a survival for its tests' text too."""

    def __init__(self, file: Path) -> None:
        self.file = file
        lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
        self.known: dict[str, str] = dict(json.loads(line) for line in lines)
        self.new: dict[str, str] = {}

    def keys(self, mutant: Mutant) -> tuple[str, str]:
        """Under which a kill and a survival are written down."""
        tests = digest(*(ROOT / "tests" / file for file in KNOWN["tests"][mutant.module]))
        kill = json.dumps([*mutant[:5], digest(path_of(mutant.module))])
        return kill, kill + tests

    def known_of(self, mutant: Mutant) -> str | None:
        """The outcome, where it is known."""
        return next((self.known[key] for key in self.keys(mutant) if key in self.known), None)

    def of(self, mutant: Mutant, limit: float) -> str:
        """The outcome, known or found now."""
        found = self.known_of(mutant)
        if found is None:
            found = outcome(mutant.module, mutated(mutant), limit)
            self.new[self.keys(mutant)[found == "survived"]] = found
        return found

    def keep(self) -> None:
        """Write down what is new."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.file.open("a", encoding="utf-8") as opened:
            opened.writelines(json.dumps(each) + "\n" for each in self.new.items())
        self.known |= self.new
        self.new.clear()


def limit_of(module: str) -> float:
    """Seconds that a mutant's tests may take: several times what they take of the module as it is."""
    begun = time.monotonic()
    found = outcome(module, ast.parse(path_of(module).read_text(encoding="utf-8")), 600)
    if found != "survived":
        raise SystemExit(f"{module}: its tests are {found} as it is. See {LOG}; mend them, or its row in mutants.yaml.")
    return 20 + 5 * (time.monotonic() - begun)


def main() -> None:
    """Try a sample of the mutants of every module; print and write what survives."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", metavar="MODULE", help="such as tokens/views [all]")
    parser.add_argument("--sample", type=int, default=8, help="mutants of each module, at most [8]")
    parser.add_argument("--seed", type=int, default=0, help="of the sample [0]")
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "mutants.jsonl", help="outcomes that are known")
    parser.add_argument("--output", type=Path, help="write the table here")
    chosen = parser.parse_args()
    sys.path.insert(0, str(ROOT / "src"))
    for name in WARM:
        import_module(name)
    sys.modules["torch"].set_num_threads(1)
    LOG.parent.mkdir(exist_ok=True)
    memory, lines, survivors, equal = Memory(chosen.work), [], [], []
    total = [0, 0]
    for module in chosen.modules or KNOWN["tests"]:
        every = mutants_of(module)
        drawn = random.Random(f"{chosen.seed} {module}").sample(every, len(every))[: chosen.sample]
        limit = limit_of(module) if any(memory.known_of(mutant) is None for mutant in drawn) else 0.0
        found = {mutant: memory.of(mutant, limit) for mutant in sorted(drawn, key=lambda each: each.number)}
        if memory.new:
            limit_of(module)  # what fails without a mutant too, as where packages have changed meanwhile, is no kill
            memory.keep()
        alive = [mutant for mutant, what in found.items() if what in ("survived", "unreached")]
        counting = [mutant for mutant in drawn if mutant.reason is None]
        killed = sum(mutant not in alive for mutant in counting)
        total = [total[0] + len(counting), total[1] + killed]
        lines.append(f"| {module} | {len(every)} | {len(drawn)} | {len(drawn) - len(counting)} | {killed} |")
        survivors += [mutant for mutant in alive if mutant.reason is None]
        equal += [(mutant, found[mutant]) for mutant in drawn if mutant.reason is not None]
        print(
            lines[-1], *(f"  {each.line}: `{each.change}`" for each in alive if not each.reason), sep="\n", flush=True
        )
    write(chosen.output, lines, survivors, equal, total)


def write(output: Path | None, lines: list[str], survivors: list[Mutant], equal: list[Any], total: list[int]) -> None:
    """The table, the survivors, and the mutants that are none."""
    from timing import Report

    report = Report("Mutants that the tests kill", __doc__, output)
    report.add(["", "| module | places | tried | equivalent | killed |", "|---|---|---|---|---|", *lines, ""])
    report.add([f"{total[1]} of {total[0]} mutants that count were killed: {100 * total[1] / max(1, total[0]):.1f} %."])
    report.add(["", "## Survivors", ""])
    report.add(f"- `src/vitlet/{each.module}.py:{each.line}`: `{each.change}`" for each in survivors)
    report.add(["", "## Equivalent", ""])
    for each, what in equal:
        wrong = "" if what == "survived" else f" **Wrong: {what}.**"
        report.add([f"- `src/vitlet/{each.module}.py:{each.line}`: `{each.change}`: {each.reason}{wrong}"])
    report.close()


if __name__ == "__main__":
    main()
