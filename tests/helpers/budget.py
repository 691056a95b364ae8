"""Hold the size of the program: code lines and tokens of each package, other text, and what one plain step enters.

    python tests/helpers/budget.py           # compare with budget.toml; `make check` runs it
    python tests/helpers/budget.py --step    # also train three steps of the quickstart, and count what the third enters
    python tests/helpers/budget.py --lower   # write what is smaller now; a larger figure is raised by hand

Docstrings, comments and blank lines do not count. Lines and tokens fall together: a denser line is no gain.
"""

from __future__ import annotations

import argparse
import ast
import io
import math
import sys
import tempfile
import threading
import tokenize
import tomllib
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any
from unittest.mock import patch

ROOT = Path(__file__).resolve().parents[2]
PACKAGE, FILE = ROOT / "dapo", ROOT / "budget.toml"
EXPLAINS = ("api", "cli", "config", "importing", "metrics", "observe", "report", "run")
NO_CODE = {getattr(tokenize, name) for name in ("COMMENT", "NL", "NEWLINE", "INDENT", "DEDENT", "ENDMARKER")}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
SHOWN = (".js", ".css", ".html")
TEXT = (".txt", ".sql", ".json", ".sh", ".tsv", ".csv", ".yaml")

Sizes = dict[str, dict[str, int]]
"""By name, two counts by their names: lines and tokens of a package, lines and bytes of text, modules and functions."""


def documentation(tree: ast.Module) -> set[int]:
    """Return the line numbers of docstrings, also of those that follow an assignment in a class or module."""
    found: set[int] = set()
    for node in ast.walk(tree):
        if not isinstance(node, DOCUMENTED):
            continue
        attributes = isinstance(node, (ast.Module, ast.ClassDef))
        for before, child in zip([None, *node.body], node.body, strict=False):
            documents = before is None or (attributes and isinstance(before, (ast.Assign, ast.AnnAssign)))
            text = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
            if documents and text and isinstance(child.value.value, str):
                found.update(range(child.lineno, (child.end_lineno or child.lineno) + 1))
    return found


def code_of(text: str) -> tuple[int, int]:
    """Return how many lines and tokens of code a module has."""
    left_out = documentation(ast.parse(text))
    lines, tokens = set[int](), 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE and token.start[0] not in left_out:
            lines.update(range(token.start[0], token.end[0] + 1))
            tokens += 1
    return len(lines), tokens


def packages() -> Sizes:
    """Return lines and tokens of each package of ``dapo``; ``dapo`` itself: its own modules."""
    lines, tokens = Counter[str](), Counter[str]()
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).parts
        package = parts[0] if len(parts) > 1 else "dapo"
        more = code_of(path.read_text())
        lines[package] += more[0]
        tokens[package] += more[1]
    return {name: {"lines": lines[name], "tokens": tokens[name]} for name in sorted(lines)}


def other_text() -> Sizes:
    """Return lines and bytes of what is no Python: what pages are made of, and the rest without recipes."""
    own = [
        path
        for path in PACKAGE.rglob("*")
        if not {"vendor", "recipes"} & set(path.parts) and not path.name.endswith(".min.js") and path.is_file()
    ]
    found: Sizes = {}
    for name, kinds in (("pages", SHOWN), ("other_text", TEXT)):
        files = [path for path in own if path.suffix in kinds]
        lines = sum(len(path.read_text().splitlines()) for path in files)
        found[name] = {"lines": lines, "bytes": sum(path.stat().st_size for path in files)}
    return found


def plain_step() -> Sizes:
    """Train three steps of the quickstart; return how many modules and functions of ``dapo`` the third enters.

    A step of a second and more also writes that it goes on. That is left out, since it depends on the machine's load.
    """
    import dapo

    entered: set[tuple[str, str]] = set()
    root = f"{PACKAGE}/"

    def watch(frame: FrameType, event: str, _: Any) -> None:
        code: CodeType = frame.f_code
        if event == "call" and code.co_filename.startswith(root):
            entered.add((code.co_filename, code.co_qualname))

    with tempfile.TemporaryDirectory() as folder, patch("dapo.observe.status.PATIENCE", math.inf):
        settings = {"run.dir": folder, "trainer.steps": 3, "validation.every": 0, "logging.console": "quiet"}
        steps = iter(dapo.Trainer("quickstart", **settings))
        next(steps)
        next(steps)
        trace_all(watch)
        try:
            next(steps)
        finally:
            trace_all(None)
        for _ in steps:
            pass
    functions = {one for one in entered if not one[1].split(".")[-1].startswith("<")}
    return {"plain_step": {"modules": len({file for file, _ in functions}), "functions": len(functions)}}


def trace_all(watch: Any) -> None:
    """Set what sees each call: in this thread and in those that begin, and in all where Python can."""
    sys.setprofile(watch)
    getattr(threading, "setprofile_all_threads", threading.setprofile)(watch)


def above(sizes: Sizes, budget: Sizes) -> list[str]:
    """Return a line for each count above its budget, and for each name that is in one of the two alone."""
    said = []
    for name in sorted(sizes.keys() | budget.keys()):
        if name not in budget:
            said.append(f"{name}: not in budget.toml")
        elif name not in sizes:
            said.append(f"{name}: in budget.toml, and not here any more")
        else:
            said += [
                f"{name}: {count:,} {what}, {count - budget[name][what]:,} above the budget"
                for what, count in sizes[name].items()
                if count > budget[name][what]
            ]
    return said


def lowered(text: str, sizes: Sizes) -> str:
    """Return the text of a budget with each count that is smaller now; reasons and comments stay."""
    lines = text.splitlines()
    for at, line in enumerate(lines):
        name, equals, rest = line.partition(" = ")
        if not equals or name not in sizes:
            continue
        table, hash_, reason = rest.partition("#")
        kept = tomllib.loads(f"it = {table}")["it"]
        new = {what: min(count, sizes[name][what]) for what, count in kept.items()}
        body = ", ".join(f"{what} = {count}" for what, count in new.items())
        lines[at] = f"{name} = {{ {body} }}" + (f"  #{reason}" if hash_ else "")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--step", action="store_true", help="count what one plain step enters, too")
    parser.add_argument("--lower", action="store_true", help="write the counts that are smaller now")
    asked = parser.parse_args()
    sizes = packages() | other_text()
    explains = {name: counts for name, counts in sizes.items() if name in EXPLAINS}
    trains = {name: counts for name, counts in sizes.items() if "tokens" in counts and name not in EXPLAINS}
    for title, part in (("what trains", trains), ("what explains", explains)):
        lines, tokens = (sum(counts[what] for counts in part.values()) for what in ("lines", "tokens"))
        print(f"{title}: {lines:,} lines, {tokens:,} tokens")
    if asked.step:
        sizes |= plain_step()
        print(f"a plain step enters {sizes['plain_step']}")
    if asked.lower:
        FILE.write_text(lowered(FILE.read_text(), sizes))
    budget = tomllib.loads(FILE.read_text())
    if not asked.step:
        del budget["plain_step"]
    said = above(sizes, budget)
    for line in said:
        print(line)
    if said:
        print("Make it smaller, or raise the line of budget.toml with the reason after a #.")
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
