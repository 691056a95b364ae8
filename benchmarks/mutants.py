"""Plant small mistakes in modules, one at a time, and see which of them the tests notice.

    python benchmarks/mutants.py MODULE... --tests TEST... [--count 150] [--seed 0] [--minutes 20] [--record FILE]
    python benchmarks/mutants.py --before FILE

MODULE is a file or folder below the working directory, TEST what pytest takes. The first form draws mutants by a seed:
a comparison, operator or constant is another, a `not` or a statement is left out, a condition is negated, a function
returns nothing. It writes a record of what was killed (some test failed, or took far longer than before) and what
survived.
The second form is for commits that delete tests: it runs the tests that are left against every mutant of the record
that was killed. Exit code 1 if one of them lives now.

All runs are forks of one process that has done the imports of other people's packages. A first run of the tests finds
out which tests reach which statement, so a mutant is run against those alone, files with little to run first, until
one test fails. A mutant outside of functions, or in one that is called while a module is imported, is run against all
tests, within `--each` seconds. Not seen are processes that a test starts with a Python of their own.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import contextlib
import gc
import hashlib
import importlib
import importlib.abc
import importlib.machinery
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

MARK = "__mutants_reached__"
"""Name under which instrumented modules find the function that notes a statement."""
Place = str
"""A statement: ``FILE:LINE:COLUMN``."""


# ---------------------------------------------------------------------- mutants


@dataclass(frozen=True, slots=True)
class Site:
    """One change that can be made to a parsed module."""

    kind: str
    statement: ast.stmt
    inside: bool
    """Whether the statement is part of a function."""
    apply: Callable[[], None]


COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Div,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}


class Sites(ast.NodeVisitor):
    """Find the places of a module where a mistake can be planted, always in the same order."""

    def __init__(self, tree: ast.Module) -> None:
        self.found: list[Site] = []
        self._statement: ast.stmt | None = None
        self._inside = False
        self._statements(tree.body)

    def _statements(self, body: list[ast.stmt]) -> None:
        for index, statement in enumerate(body):
            if not left_alone(statement):
                outer, self._statement = self._statement, statement
                if removable(statement):
                    self._add("drop a statement", _set_item(body, index, ast.copy_location(ast.Pass(), statement)))
                self.visit(statement)
                self._statement = outer

    def _add(self, kind: str, apply: Callable[[], None]) -> None:
        assert self._statement is not None
        self.found.append(Site(kind, self._statement, self._inside, apply))

    def generic_visit(self, node: ast.AST) -> None:
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "type_params"):
                continue
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                self._statements(value)
                continue
            for index, child in enumerate(value if isinstance(value, list) else [value]):
                if isinstance(child, ast.AST):
                    self._replacements(node, name, index if isinstance(value, list) else None, child)
                    self.visit(child)

    def _replacements(self, node: ast.AST, name: str, index: int | None, child: ast.AST) -> None:
        """Add what may stand in the place of ``child``."""

        def put(new: ast.expr) -> Callable[[], None]:
            located = ast.fix_missing_locations(ast.copy_location(new, child))
            return _set_field(node, name, located) if index is None else _set_item(getattr(node, name), index, located)

        if isinstance(child, ast.UnaryOp) and isinstance(child.op, ast.Not | ast.USub):
            self._add("drop a not" if isinstance(child.op, ast.Not) else "drop a minus", put(child.operand))
        elif isinstance(child, ast.Constant) and not isinstance(node, ast.JoinedStr):
            if (other := another(child.value)) is not None:
                self._add("constant", put(ast.Constant(other)))
        elif name == "test" and isinstance(child, ast.expr) and not isinstance(child, ast.Compare):
            self._add("negate a condition", put(ast.UnaryOp(ast.Not(), child)))

    def visit_keyword(self, node: ast.keyword) -> None:
        if node.arg != "strict":  # of zip: what it refuses never comes
            self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.visit(node.args)  # defaults are evaluated where the function is defined
        outer, self._inside = self._inside, True
        self._statements(node.body)
        self._inside = outer

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Compare(self, node: ast.Compare) -> None:
        for index, operator in enumerate(node.ops):
            self._add("comparison", _set_item(node.ops, index, COMPARISONS[type(operator)]()))
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp | ast.AugAssign) -> None:
        other = ARITHMETIC.get(type(node.op))
        if other is not None and not any(is_text(part) for part in ast.iter_child_nodes(node)):
            self._add("arithmetic", _set_field(node, "op", other()))
        self.generic_visit(node)

    visit_AugAssign = visit_BinOp

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        self._add("boolean operator", _set_field(node, "op", ast.Or() if isinstance(node.op, ast.And) else ast.And()))
        self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None and not (isinstance(node.value, ast.Constant) and node.value.value is None):
            nothing = ast.copy_location(ast.Constant(None), node.value)
            self._add("return nothing", _set_field(node, "value", nothing))
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._replacements(node, "value", None, node.value)
            self.visit(node.value)


def _set_field(node: ast.AST, name: str, new: ast.AST) -> Callable[[], None]:
    return lambda: setattr(node, name, new)


def _set_item(items: list[Any], index: int, new: ast.AST) -> Callable[[], None]:
    return lambda: items.__setitem__(index, new)


def left_alone(statement: ast.stmt) -> bool:
    """Return whether no mistake is planted in ``statement``: imports, docstrings, assertions, what types alone read."""
    if isinstance(statement, ast.Import | ast.ImportFrom | ast.Assert | ast.Pass | ast.Global | ast.Nonlocal):
        return True
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant)
    if isinstance(statement, ast.If):
        return ast.unparse(statement.test) in ("TYPE_CHECKING", "__name__ == '__main__'")
    named = [*getattr(statement, "targets", ()), getattr(statement, "target", None)]
    return any(isinstance(name, ast.Name) and name.id in ("__all__", "__slots__") for name in named)


def removable(statement: ast.stmt) -> bool:
    """Return whether a program without ``statement`` still has all its names."""
    if isinstance(statement, ast.Assign):
        return all(isinstance(target, ast.Attribute | ast.Subscript) for target in statement.targets)
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Call | ast.Await)
    return isinstance(statement, ast.AugAssign | ast.Raise | ast.Continue | ast.Break | ast.Delete)


def is_text(node: ast.AST) -> bool:
    """Return whether ``node`` is a string: an operator between texts gives an error that any test notices."""
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def another(value: object) -> object | None:
    """Return another constant, or None for one that is left as it is. Sentences are: wording is no behaviour."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str) and value and not any(letter.isspace() for letter in value):
        return value + "_"
    return None


@dataclass(slots=True)
class Mutant:
    """One mistake, and what became of it."""

    file: str
    number: int
    """Of the file's sites."""
    kind: str
    place: Place
    inside: bool
    before: str
    after: str
    state: str = "not run"
    """killed, survived, or unreached: no test comes to its statement."""
    killer: str = ""
    """The test that failed."""
    tests: list[str] = field(default_factory=list)
    """The tests that were to be run against it."""

    def __str__(self) -> str:
        return f"{self.place} {self.kind}: `{self.before}` -> `{self.after}`"


def source_files(named: Sequence[str]) -> list[str]:
    """Return the Python files that are named or lie in named folders."""
    found = []
    for name in named:
        path = Path(name)
        found += sorted(path.rglob("*.py")) if path.is_dir() else [path]
    if missing := [str(path) for path in found if not path.is_file()]:
        raise SystemExit(f"no such module: {', '.join(missing)}; expected files or folders, such as dapo/algorithms")
    return [path.as_posix() for path in found]


def draw(files: Sequence[str], count: int, seed: int) -> list[Mutant]:
    """Return ``count`` mutants of all that ``files`` allow, the same for the same seed."""
    every = [(file, number) for file in files for number in range(len(Sites(parsed(file)).found))]
    drawn = random.Random(seed).sample(every, min(count, len(every)))
    return [describe(file, number) for file, number in sorted(drawn)]


def describe(file: str, number: int) -> Mutant:
    """Return a mutant with the first lines of its statement before and after."""
    tree = parsed(file)
    site = Sites(tree).found[number]
    before = ast.unparse(site.statement).splitlines()
    site.apply()
    after = ast.unparse(find_at(tree, place_of(file, site.statement), file)).splitlines()
    apart = next((n for n, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), 0)
    lines = [lines[apart].strip() if apart < len(lines) else "" for lines in (before, after)]
    return Mutant(file, number, site.kind, place_of(file, site.statement), site.inside, *lines)


def find_at(tree: ast.Module, place: Place, file: str) -> ast.stmt:
    """Return the statement at ``place``."""
    return next(node for node in ast.walk(tree) if isinstance(node, ast.stmt) and place_of(file, node) == place)


def place_of(file: str, statement: ast.stmt) -> Place:
    return f"{file}:{statement.lineno}:{statement.col_offset}"


def parsed(file: str) -> ast.Module:
    return ast.parse(Path(file).read_text(), file)


def mutated(mutant: Mutant) -> ast.Module:
    """Return the module of ``mutant`` with the mistake in it."""
    tree = parsed(mutant.file)
    Sites(tree).found[mutant.number].apply()
    return tree


def instrumented(file: str) -> ast.Module:
    """Return the module with a note in front of each statement of its functions."""
    tree = parsed(file)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            _note_statements(file, node)
    return ast.fix_missing_locations(tree)


def _note_statements(file: str, node: ast.AST) -> None:
    """Put notes into the bodies of ``node``, apart from those of functions in it, which come by themselves."""
    for _, body in list(ast.iter_fields(node)):
        if not isinstance(body, list):
            continue
        for part in body:
            if isinstance(part, ast.ExceptHandler | ast.match_case):
                _note_statements(file, part)
        if not (body and isinstance(body[0], ast.stmt)):
            continue
        noted: list[ast.stmt] = []
        for statement in body:
            if not left_alone(statement):
                call = ast.Call(ast.Name(MARK, ast.Load()), [ast.Constant(place_of(file, statement))], [])
                noted.append(ast.copy_location(ast.Expr(call), statement))
            noted.append(statement)
            if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                _note_statements(file, statement)
        body[:] = noted


class Loaded(importlib.abc.MetaPathFinder):
    """Import some modules from changed trees instead of their files."""

    def __init__(self, trees: Mapping[str, ast.Module]) -> None:
        self._trees = {str(Path(file).resolve()): tree for file, tree in trees.items()}

    def find_spec(self, name: str, path: Sequence[str] | None, target: object = None) -> Any:
        found = importlib.machinery.PathFinder.find_spec(name, path)
        tree = self._trees.get(str(found.origin)) if found is not None else None
        if found is None or tree is None:
            return None
        found.loader = _TreeLoader(name, str(found.origin), tree)
        return found


class _TreeLoader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, tree: ast.Module) -> None:
        super().__init__(name, path)
        self._tree = tree

    def get_code(self, fullname: str) -> Any:
        return compile(self._tree, self.path, "exec", dont_inherit=True)


# ---------------------------------------------------------------------- runs of tests


@dataclass(slots=True)
class Measured:
    """What the first run of the tests found out."""

    seconds: dict[str, float]
    """Of each test that passes."""
    reached: dict[Place, set[str]]
    """The tests that come to a statement."""
    importing: set[Place]
    """Statements that are executed while modules are imported."""


class Watch:
    """A plugin that notes which tests reach which statements."""

    def __init__(self) -> None:
        self._now: set[Place] = set()
        self._importing = self._now
        self._of_tests: dict[str, set[Place]] = {}
        self._of_fixtures: dict[int, set[Place]] = defaultdict(set)
        self._used: dict[str, list[int]] = {}
        self._seconds: dict[str, float] = defaultdict(float)
        self._failed: set[str] = set()
        builtins.__dict__[MARK] = lambda place: self._now.add(place)

    @contextlib.contextmanager
    def _noting(self, places: set[Place]) -> Iterator[None]:
        outer, self._now = self._now, places
        try:
            yield
        finally:
            self._now = outer

    def pytest_runtest_protocol(self, item: Any, nextitem: Any) -> Iterator[None]:
        fixtures = item._fixtureinfo.name2fixturedefs.values()
        self._used[item.nodeid] = [id(one) for same in fixtures for one in same]
        with self._noting(self._of_tests.setdefault(item.nodeid, set())):
            return (yield)

    def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> Iterator[None]:
        with self._noting(self._of_fixtures[id(fixturedef)]):  # a wide one counts for all of its tests
            return (yield)

    def pytest_runtest_logreport(self, report: Any) -> None:
        self._seconds[report.nodeid] += report.duration
        if report.outcome != "passed":
            self._failed.add(report.nodeid)

    def result(self) -> dict[str, Any]:
        """Return what ``Measured`` is made of."""
        reached: dict[Place, list[str]] = defaultdict(list)
        for test, own in self._of_tests.items():
            if test not in self._failed:
                for place in own.union(*(self._of_fixtures[number] for number in self._used[test])):
                    reached[place].append(test)
        passed = {test: seconds for test, seconds in self._seconds.items() if test not in self._failed}
        return {"seconds": passed, "reached": reached, "importing": list(self._importing)}


class Chosen:
    """A plugin that runs some tests alone, in their order, and keeps the first that fails."""

    def __init__(self, tests: Sequence[str], models: Path) -> None:
        self._order = {test: number for number, test in enumerate(tests)}
        self._models = models
        self.failed = ""

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = sorted(
            (item for item in items if item.nodeid in self._order), key=lambda item: self._order[item.nodeid]
        )
        if self._models.is_dir():  # base models that the first run has made
            shutil.copytree(self._models, os.environ["DAPO_CACHE"], dirs_exist_ok=True)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and not self.failed:
            self.failed = report.nodeid


class Tests:
    """Runs tests in forks of this process, each in a session and a temporary folder of its own."""

    def __init__(self, named: Sequence[str], work: Path) -> None:
        self._named = list(named)
        self._work = work
        self._models = work / "models"

    def preload(self) -> list[str]:
        """Import what the tests import, apart from what lies in the working directory, and return all tests' names."""

        def collect() -> dict[str, Any]:
            import pytest

            seen: list[str] = []

            class Names:
                def pytest_collection_finish(self, session: Any) -> None:
                    seen.extend(item.nodeid for item in session.items)

            code = pytest.main([*self._named, "--collect-only", *QUIET], plugins=[Names()])
            modules = [name for name, module in list(sys.modules.items()) if others(module)]
            return {"code": int(code), "tests": seen, "modules": modules}

        found = self._fork(collect, 600)
        if found is None or found["code"]:
            raise SystemExit(f"pytest cannot collect {' '.join(self._named)}; try: python -m pytest --collect-only ...")
        for name in found["modules"]:
            with contextlib.suppress(Exception):
                importlib.import_module(name)
        gc.collect()
        gc.freeze()
        return list(found["tests"])

    def measure(self, files: Sequence[str], limit: float) -> Measured:
        """Run all tests once, with notes in ``files``."""

        def run() -> dict[str, Any]:
            import pytest

            watch = Watch()
            sys.meta_path.insert(0, Loaded({file: instrumented(file) for file in files}))
            with contextlib.suppress(SystemExit):
                pytest.main([*self._named, *QUIET], plugins=[hooked(watch)])
            models = Path(os.environ.get("DAPO_CACHE", "nowhere"))
            if models.is_dir():
                shutil.copytree(models, self._models)
            return watch.result()

        found = self._fork(run, limit)
        if found is None:
            raise SystemExit(f"the tests did not end within {limit:.0f} s, or their process was killed")
        reached = {place: set(tests) for place, tests in found["reached"].items()}
        return Measured(found["seconds"], reached, set(found["importing"]))

    def killer(self, mutant: Mutant, seconds: Mapping[str, float]) -> str:
        """Run ``mutant.tests`` against it. Return the first that fails, or "" if all pass.

        The tests of a few files come first: most mutants are killed there, and collecting takes time.
        """
        files = list(dict.fromkeys(test.partition("::")[0] for test in mutant.tests))
        begin, size = 0, 1
        while begin < len(files):
            few = files[begin : begin + size]
            tests = [test for test in mutant.tests if test.partition("::")[0] in few]
            if failed := self._first_failure(mutant, few, tests, seconds):
                return failed
            begin, size = begin + size, 2 * size
        return ""

    def _first_failure(
        self, mutant: Mutant, files: Sequence[str], tests: Sequence[str], seconds: Mapping[str, float]
    ) -> str:
        def run() -> dict[str, Any]:
            import pytest

            chosen = Chosen(tests, self._models)
            sys.meta_path.insert(0, Loaded({mutant.file: mutated(mutant)}))
            code = pytest.main([*files, "-x", *QUIET], plugins=[chosen])
            return {"failed": chosen.failed or ("" if code in (0, 5) else f"pytest ended with code {int(code)}")}

        usual = sum(seconds.values()) / max(1, len(seconds))  # of a test that is new
        limit = 30 + 5 * sum(seconds.get(test, usual) for test in tests)
        found = self._fork(run, limit)
        return f"no end within {limit:.0f} s, or the process died" if found is None else found["failed"]

    def _fork(self, run: Callable[[], dict[str, Any]], limit: float) -> dict[str, Any] | None:
        """Return what ``run`` returns in a fork, or None if the fork ended without or took longer than ``limit`` s."""
        folder = Path(tempfile.mkdtemp(dir=self._work))
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            _become(folder)
            code = 1
            with contextlib.suppress(BaseException):
                (folder / "answer.part").write_text(json.dumps(run()))
                (folder / "answer.part").rename(folder / "answer")
                code = 0
            os._exit(code)
        end = time.monotonic() + limit
        ended = False
        try:
            while not ended and time.monotonic() < end:
                ended = os.waitpid(child, os.WNOHANG)[0] == child
                time.sleep(0.01)
        finally:
            if not ended:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child, signal.SIGKILL)  # what its tests have left
        answer = folder / "answer"
        found = json.loads(answer.read_text()) if answer.is_file() else None
        shutil.rmtree(folder, ignore_errors=True)
        return found


QUIET = ["-p", "no:cacheprovider", "-p", "no:faulthandler"]


def _become(folder: Path) -> None:
    """Give this fork a session, a folder for temporary files, and no terminal."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    log = os.open(folder / "output", os.O_WRONLY | os.O_CREAT)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)


def others(module: object) -> bool:
    """Return whether ``module`` is a file of an installed package or of Python itself."""
    file = getattr(module, "__file__", None)
    if not file:
        return False
    path = Path(file)
    return "site-packages" in path.parts or Path.cwd() not in path.parents


def hooked(watch: Watch) -> Watch:
    """Mark the wrapping hooks of ``watch`` as such; pytest is imported in forks only."""
    import pytest

    for hook in (Watch.pytest_runtest_protocol, Watch.pytest_fixture_setup):
        pytest.hookimpl(wrapper=True)(hook)
    return watch


def choose(mutant: Mutant, measured: Measured, each: float) -> list[str]:
    """Return the tests to run against ``mutant``, files with little to run first."""
    seconds = measured.seconds
    if mutant.inside and mutant.place not in measured.importing:
        return by_file(measured.reached.get(mutant.place, set()), seconds)
    same = {test for place, tests in measured.reached.items() if place.startswith(f"{mutant.file}:") for test in tests}
    found: list[str] = []
    left = each
    for test in by_file(same, seconds) + by_file(set(seconds) - same, seconds):
        left -= seconds[test]
        if left > 0:
            found.append(test)
    return found


def by_file(tests: set[str], seconds: Mapping[str, float]) -> list[str]:
    """Return the tests sorted by the seconds of their files, and within a file as they were run."""
    of_file: Counter[str] = Counter()
    for test in tests:
        of_file[test.partition("::")[0]] += seconds.get(test, 1.0)  # type: ignore[assignment]  # a sum of seconds
    place = {test: number for number, test in enumerate(seconds)}
    names = [(of_file[test.partition("::")[0]], test.partition("::")[0], place.get(test, 0), test) for test in tests]
    return [name[-1] for name in sorted(names)]


# ---------------------------------------------------------------------- before and after


@dataclass(slots=True)
class Record:
    """Mutants and what became of them, in a file."""

    tests: list[str]
    """What pytest was given."""
    seed: int
    files: dict[str, str]
    """Digest of each module: its mutants are numbered, and mean something else in another text."""
    seconds: dict[str, float]
    mutants: list[Mutant]

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> Record:
        found = json.loads(path.read_text())
        return cls(**found | {"mutants": [Mutant(**one) for one in found["mutants"]]})


def digest(file: str) -> str:
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16]


def first(arguments: argparse.Namespace, work: Path) -> int:
    """Draw mutants, run the tests against them, and write the record."""
    begin = time.monotonic()
    files = source_files(arguments.modules)
    mutants = draw(files, arguments.count, arguments.seed)
    tests = Tests(arguments.tests, work)
    tests.preload()
    measured = tests.measure(files, 60 * arguments.minutes)
    print(f"{len(measured.seconds)} tests pass, in {time.monotonic() - begin:.0f} s", flush=True)
    order = list(range(len(mutants)))
    random.Random(arguments.seed).shuffle(order)  # what is left when the time is over lies in all modules
    for number in order:
        if time.monotonic() - begin > 60 * arguments.minutes:
            break
        mutant = mutants[number]
        mutant.tests = choose(mutant, measured, arguments.each)
        mutant.killer = tests.killer(mutant, measured.seconds) if mutant.tests else ""
        mutant.state = "killed" if mutant.killer else "survived" if mutant.tests else "unreached"
    digests = {file: digest(file) for file in files}
    record = Record(arguments.tests, arguments.seed, digests, measured.seconds, mutants)
    record.write(arguments.record)
    for state in ("survived", "unreached"):
        for mutant in mutants:
            if mutant.state == state:
                print(f"{state}  {mutant}")
    counts = Counter(mutant.state for mutant in mutants)
    print(f"{counted(counts)}; {time.monotonic() - begin:.0f} s; {arguments.record}")
    return 0


def again(arguments: argparse.Namespace, work: Path) -> int:
    """Run the tests that are left against the mutants that were killed. Return 1 if one lives."""
    begin = time.monotonic()
    record = Record.read(arguments.before)
    if changed := [file for file, known in record.files.items() if not Path(file).is_file() or digest(file) != known]:
        raise SystemExit(f"{', '.join(changed)} changed since the record was written; make it again")
    tests = Tests(record.tests, work)
    there = tests.preload()
    new = [test for test in there if test not in record.seconds]
    living, counts = [], Counter[str]()
    for mutant in record.mutants:
        if mutant.state != "killed":
            continue
        if time.monotonic() - begin > 60 * arguments.minutes:
            counts["not run"] += 1
            continue
        left = set(there) & set(mutant.tests)
        same = [mutant.killer] if mutant.killer in left else []
        mutant.tests = [*same, *new, *by_file(left - set(same), record.seconds)]
        lives = not (mutant.tests and tests.killer(mutant, record.seconds))
        counts["killed before, living now" if lives else "killed"] += 1
        if lives:
            living.append(mutant)
            print(f"LIVES  {mutant}\n       was killed by {mutant.killer}", flush=True)
    print(f"{len(record.seconds)} tests before, {len(there)} now; {counted(counts)}; {time.monotonic() - begin:.0f} s")
    return 1 if living or counts["not run"] else 0


def counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {state}" for state, number in sorted(counts.items()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", metavar="MODULE", help="files or folders to plant mistakes in")
    parser.add_argument("--tests", nargs="+", metavar="TEST", help="files or folders of tests")
    parser.add_argument("--before", type=Path, metavar="FILE", help="a record: run its killed mutants again")
    parser.add_argument("--count", type=int, default=150)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=20, help="no further mutant is begun after this time")
    parser.add_argument("--each", type=float, default=60, help="seconds of tests for a mutant outside of functions")
    parser.add_argument("--record", type=Path, default=Path("build/mutants.json"))
    arguments = parser.parse_args()
    if (arguments.before is None) != bool(arguments.modules and arguments.tests):
        parser.error("name modules and --tests, or --before alone")
    sys.path.insert(0, str(Path.cwd()))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # with the fork that is running
    with tempfile.TemporaryDirectory(prefix="mutants-") as work:
        return (first if arguments.before is None else again)(arguments, Path(work))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
