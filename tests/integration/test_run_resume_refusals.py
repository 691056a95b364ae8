"""What a resume refuses: by name, in a line or two, and before anything of the run is cut back."""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from quick import quick
from small_run import write_recipe

from dapo.cli.main import main
from dapo.observe.metrics import read_metrics
from dapo.observe.status import read_status

PROBLEMS = [{"problem": f"{n} + 1", "answer": str(n + 1), "level": n} for n in range(12)]
FEW = [
    "trainer.steps=3",
    "checkpoint.every=2",
    "validation.every=0",
    "validation.greedy=false",
    "logging.console=quiet",
]


def write_problems(path: Path, problems: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(problem) + "\n" for problem in problems))


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A run of three steps, its last checkpoint taken away: what step 3 wrote would be cut off by a resume."""
    folder = tmp_path_factory.mktemp("base")
    recipe = write_recipe(folder)
    write_problems(folder / "train.jsonl", PROBLEMS)
    write_problems(folder / "held.jsonl", [{"problem": "what?", "answer": "1"}])
    data = [f"data.train=[{{path: {folder}/train.jsonl, name: sums}}]"]
    data += [f"data.validation=[{{path: {folder}/held.jsonl, name: held}}]", "algorithm.dynamic_sampling.mode=mask"]
    assert main(["train", str(recipe), *data, *FEW]) == 0
    shutil.rmtree(folder / "run" / "checkpoints" / "step_000003")
    return folder


@pytest.fixture
def run(base, tmp_path):
    return Path(shutil.copytree(base / "run", tmp_path / "run"))


def checkpoint(run: Path) -> Path:
    return run / "checkpoints" / "step_000002"


def mend_manifest(run: Path) -> None:
    """As if the file had been written like this."""
    folder = checkpoint(run)
    files = [p for p in folder.rglob("*") if p.is_file() and p.name != "manifest.json"]
    manifest = {str(p.relative_to(folder)): [p.stat().st_size, zlib.crc32(p.read_bytes())] for p in files}
    (folder / "manifest.json").write_text(json.dumps(manifest))


def change_state(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def damage(run: Path) -> None:
        file = checkpoint(run) / "state.json"
        state = json.loads(file.read_text())
        changed = change(state)
        file.write_text(json.dumps(state if changed is None else changed))
        mend_manifest(run)

    return damage


def write(name: str, content: bytes, mended: bool = True) -> Callable[[Path], None]:
    def damage(run: Path) -> None:
        (checkpoint(run) / name).write_bytes(content)
        if mended:
            mend_manifest(run)

    return damage


def remove(name: str) -> Callable[[Path], None]:
    def damage(run: Path) -> None:
        (checkpoint(run) / name).unlink()
        mend_manifest(run)

    return damage


def folder_instead(name: str) -> Callable[[Path], None]:
    def damage(run: Path) -> None:
        path = run / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        path.mkdir()

    return damage


def file_instead(name: str) -> Callable[[Path], None]:
    def damage(run: Path) -> None:
        shutil.rmtree(run / name, ignore_errors=True)
        (run / name).write_text("x")

    return damage


def append(name: str, line: str) -> Callable[[Path], None]:
    def damage(run: Path) -> None:
        (run / name).write_text((run / name).read_text() + line)

    return damage


def edit_recipe(section: str, key: str, value: Any) -> Callable[[Path], None]:
    def damage(run: Path) -> None:
        file = run / "recipe.resolved.yaml"
        recipe = yaml.safe_load(file.read_text())
        recipe[section][key] = value
        file.write_text(yaml.safe_dump(recipe))

    return damage


DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "a manifest too deep": (write("manifest.json", b"[" * 100_000, False), "manifest.json cannot be read"),
    "an empty manifest": (write("manifest.json", b"{}", False), "names no file"),
    "a manifest of a list": (write("manifest.json", b"[1]", False), "manifest.json cannot be read"),
    "a manifest in latin": (write("manifest.json", b'{"\xe9": [1, 2]}', False), "manifest.json cannot be read"),
    "a manifest with odd sizes": (write("manifest.json", b'{"state.json": ["x", null]}', False), "state.json has"),
    "a manifest of NUL names": (write("manifest.json", b'{"a\\u0000b": [1, 2]}', False), "damaged"),
    "a state cut short": (write("state.json", b'{"format"', True), "state.json cannot be read"),
    "a state too deep": (write("state.json", b"[" * 100_000, True), "state.json cannot be read"),
    "a state of a list": (write("state.json", b"[]", True), "expected the state of a run"),
    "a state of nothing": (write("state.json", b"{}", True), "format None; this version of dapo reads format 2"),
    "no state": (remove("state.json"), "state.json is missing"),
    "no arrays": (remove("state.npz"), "state.npz"),
    "arrays of garbage": (write("state.npz", b"garbage"), "state.npz cannot be read"),
    "arrays of nothing": (write("state.npz", b""), "state.npz cannot be read"),
    "no weights": (remove("learner/rank-00000-of-00001.safetensors"), "learner"),
    "weights of garbage": (write("learner/rank-00000-of-00001.safetensors", b"\xff" * 64), "learner"),
    "a learner's state of a list": (write("learner/state.json", b"[]"), "learner"),
    "a learner's state too deep": (write("learner/state.json", b"[" * 100_000), "learner"),
    "another format": (change_state(lambda s: s.update(format=7)), "format 7; this version of dapo reads format 2"),
    "a counter of text": (change_state(lambda s: s["counters"].update(training_steps="2")), "state.json does not hold"),
    "a counter too many": (change_state(lambda s: s["counters"].update(more=2)), "state.json does not hold"),
    "another step": (change_state(lambda s: s["counters"].update(training_steps=9)), "the state of step 9"),
    "no collector": (change_state(lambda s: s.update(collector=None)), "state.json does not hold"),
    "groups of text": (change_state(lambda s: s["collector"].update(kept="abc")), "state.json does not hold"),
    "a history cut short": (change_state(lambda s: s["collector"]["history"]["ids"].__delitem__(0)), "does not hold"),
    "an unknown verdict": (
        change_state(lambda s: s["collector"]["history"]["verdicts"].__setitem__(0, "odd")),
        "'odd' is not a valid Verdict",
    ),
    "checkpoints a file": (file_instead("checkpoints"), "checkpoints is no folder"),
    "rollouts a file": (file_instead("rollouts"), "rollouts is no folder"),
    "tokens a file": (file_instead("tokens"), "tokens is no folder"),
    "a folder as metrics": (folder_instead("metrics.jsonl"), "metrics.jsonl is no file"),
    "a folder as log": (folder_instead("log.txt"), "log.txt is no file"),
    "a folder as lock": (folder_instead("lock"), "lock is no file"),
    "a folder as status": (folder_instead("status.json"), "status.json is no file"),
    "a folder as rollouts of a step": (folder_instead("rollouts/step_000003.parquet"), "step_000003.parquet is no"),
    "a metrics line without a step": (append("metrics.jsonl", '{"train/loss": 1}\n'), "names no step"),
    "a metrics line of text": (append("metrics.jsonl", "x\n"), "is not JSON"),
    "a metrics line too deep": (append("metrics.jsonl", "[" * 100_000 + "\n"), "is not JSON"),
    "another group size": (edit_recipe("rollout", "group_size", 8), "rollout.group_size: 4 -> 8 (fixed)"),
    "another seed": (edit_recipe("run", "seed", 4), "`run.seed` was 3, now it is 4"),
}


FEW_DAMAGED = [
    *("an empty manifest", "a state cut short", "arrays of garbage", "no weights", "another format"),
    *("a counter too many", "rollouts a file", "a metrics line of text", "another group size", "another seed"),
]
"""The kinds of damage; the others are its forms."""


@pytest.mark.parametrize("case", quick(DAMAGE, FEW_DAMAGED))
def test_what_is_damaged_is_named_and_nothing_is_cut_back(run, capsys, case):
    damage, said = DAMAGE[case]
    damage(run)
    kept = {p: p.read_bytes() for p in run.rglob("*") if p.is_file() and p.name not in ("lock", "log.txt")}
    assert main(["train", "--resume", str(run)]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert "Traceback" not in told
    now = {p: p.read_bytes() for p in run.rglob("*") if p.is_file() and p.name not in ("lock", "log.txt")}
    assert now == kept


CHANGES = {
    "answer": [{**p, "answer": f"x{p['answer']}"} for p in PROBLEMS],
    "one answer": [*PROBLEMS[:-1], {**PROBLEMS[-1], "answer": "99"}],
    "a column": [{**p, "level": 1} for p in PROBLEMS],
    "a problem": [*PROBLEMS[:-1], {**PROBLEMS[-1], "problem": "other"}],
    "the order": PROBLEMS[::-1],
    "fewer": PROBLEMS[:-1],
}


@pytest.mark.parametrize("what", quick(CHANGES, ["answer", "the order"]))
def test_other_data_are_refused_before_anything_is_cut_back(run, base, capsys, what):
    write_problems(base / "train.jsonl", CHANGES[what])
    try:
        assert main(["train", "--resume", str(run)]) == 2
    finally:
        write_problems(base / "train.jsonl", PROBLEMS)
    assert "the saved position belongs to other data" in capsys.readouterr().err
    assert len(read_metrics(run / "metrics.jsonl")) == 3
    assert (run / "rollouts" / "step_000003.parquet").is_file()
    assert read_status(run / "status.json").state == "finished"


def test_what_a_resume_says_of_a_changed_run_and_what_it_leaves_alone(run, base, capsys):
    """An edited setting, other held-out answers, a lost line, other people's files: told, and the run goes on."""
    edit_recipe("learner", "learning_rate", 0.02)(run)
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(line for line in lines if not line.startswith('{"step": 1,')))
    (run / "rollouts" / "step_000001.parquet").write_bytes(b"")
    (run / "rollouts" / "step_x.parquet").write_text("mine")
    (run / "checkpoints" / ".writing-step_000009").write_text("x")
    held = base / "held.jsonl"
    try:
        write_problems(held, [{"problem": "what?", "answer": "2"}])
        assert main(["train", "--resume", str(run), "logging.console=plain"]) == 0
    finally:
        write_problems(held, [{"problem": "what?", "answer": "1"}])
    told = capsys.readouterr()
    said = told.out + told.err
    assert "learner.learning_rate: 0.01 -> 0.02 (ask)" in said
    assert "held-out problems are not those" in said
    assert "has lost step 1" in said
    assert "a file that was cut or emptied of step 1" in said
    assert (run / "rollouts" / "step_x.parquet").read_text() == "mine"
    assert [row["step"] for row in read_metrics(run / "metrics.jsonl")] == [2, 3]


@pytest.mark.parametrize("changed", [["trainer.steps=1"], ["trainer.steps=2", "learner.learning_rate=0.5"]])
def test_settings_that_could_train_nothing_are_refused_and_not_recorded(run, capsys, changed):
    resolved = (run / "recipe.resolved.yaml").read_text()
    assert main(["train", "--resume", str(run), *changed]) == 2
    assert "the run is at step 2" in capsys.readouterr().err
    assert (run / "recipe.resolved.yaml").read_text() == resolved
    assert [row["step"] for row in read_metrics(run / "metrics.jsonl")] == [1, 2, 3]
