"""Published results name the commit that made them, and it has no changes beside it."""

from __future__ import annotations

import ast
import json
import re
import subprocess
from pathlib import Path

import pytest

RESULTS = Path(__file__).resolve().parents[3] / "benchmarks" / "results"
SCRIPTS = [file for file in sorted(RESULTS.parent.glob("*.py")) if "__main__" in file.read_text()]
EXPECTED = {
    "cluster.json": "commit '2449f2f-dirty'",
    "cluster.md": "commit '2449f2f-dirty'",
    "fleet.md": "commit '2449f2f-dirty'",
    "step_differences.md": "names no commit",
}
"""Tables made before the scripts refused uncommitted code, and a listing that a test compares with its script."""
COMMIT = re.compile(r'"commit": "([^"]*)"|\bcommit ([0-9a-f]{7}[^.;:\n]*)')


def commits(text: str) -> list[str]:
    """Return the commits that a result names, of which an ablation's may have several."""
    found = [one or other for one, other in COMMIT.findall(text)]
    return [name.strip() for each in found for name in each.split(",") if not re.match(r"\s*20\d\d-", name)]


def problem(text: str) -> str | None:
    named = commits(text)
    if not named:
        return "names no commit"
    wrong = [name for name in named if not re.fullmatch(r"[0-9a-f]{7,40}", name)]
    return f"commit {wrong[0]!r}" if wrong else None


def test_results_name_clean_commits():
    found = {file.name: problem(file.read_text()) for file in RESULTS.iterdir() if file.suffix in (".json", ".md")}
    assert {name: what for name, what in found.items() if what} == EXPECTED


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"commit": "381d4a5"}', None),
        ("x; commit 381d4a5, 2026-11-22.", None),
        ("x; commit 381d4a5, 4abcb57, 2026-11-22.", None),
        ('{"commit": "381d4a5, 4abcb57-dirty"}', "commit '4abcb57-dirty'"),
        ("commit eb73f33 and this script, 2026-11-23: x", "commit 'eb73f33 and this script'"),
        ("x", "names no commit"),
    ],
)
def test_each_way_of_naming_a_commit_is_read(text, found):
    assert problem(text) == found


def test_every_script_that_writes_there_refuses_uncommitted_code():
    lacking = []
    for file in SCRIPTS:
        nodes = list(ast.walk(ast.parse(file.read_text())))
        calls = {ast.unparse(node.func).rpartition(".")[2] for node in nodes if isinstance(node, ast.Call)}
        words = {node.id for node in nodes if isinstance(node, ast.Name)}
        words |= {part for node in nodes if isinstance(node, ast.Constant) for part in str(node.value).split("/")[:2]}
        writes = calls & {"write_text", "savefig"} and words & {"RESULTS", "results"}
        if writes and "refuse_changes" not in calls:
            lacking.append(file.name)
    assert lacking == []


def test_the_commit_is_that_of_the_beginning(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(RESULTS.parent))
    import machine

    def commit(file):
        file.parent.mkdir(exist_ok=True)
        file.write_text(file.name)
        command = ["git", "-c", "user.name=t", "-c", "user.email=t@t"]
        for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", file.name]):
            subprocess.run([*command, *arguments], cwd=tmp_path, check=True)

    monkeypatch.setattr(machine, "HERE", tmp_path / "benchmarks")
    commit(tmp_path / "benchmarks/a.py")
    began = machine.describe_machine()["commit"]
    commit(tmp_path / "README.md")
    assert machine.describe_machine()["commit"] == began
    commit(tmp_path / "examples/agent.py")  # while runs went on: they may have taken it
    assert machine.describe_machine()["commit"] == began + "-dirty"


def test_a_run_of_older_code_is_named_by_the_commit_that_made_it(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(RESULTS.parent))
    import machine

    runs = [tmp_path / name for name in "abc"]
    for run, lines in zip(
        runs, ([("1" * 40, False)], [("2" * 40, False), ("3" * 40, True)], [("", None)]), strict=True
    ):
        run.mkdir()
        said = [json.dumps({"commit": commit, "dirty": dirty}) + "\n" for commit, dirty in lines]
        (run / "machine.jsonl").write_text("".join(said))
    assert machine.commits_of(runs[:2]) == "11111111, 22222222, 33333333-dirty"
    with pytest.raises(SystemExit, match="names no commit"):
        machine.commits_of(runs)
