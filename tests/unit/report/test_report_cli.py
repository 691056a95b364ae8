import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from documented_json import documented_keys
from made_folders import HOSTILE

from dapo.cli.main import main

NEW = {"report.html", "trace.json"}


def everything(folder):
    """Every file with its content and time, but those of the report."""
    return {
        path.relative_to(folder): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file() and path.relative_to(folder).parts[0] != "report"
    }


@pytest.mark.whole
def test_one_run_has_its_report_in_its_folder_and_nothing_else_changes(tmp_path, make_run, capsys):
    folder = make_run(tmp_path / "my run")
    before = everything(folder)
    assert main(["report", str(folder)]) == 0
    assert everything(folder) == before
    written = {path.name for path in (folder / "report").iterdir()}
    assert written == NEW
    said = capsys.readouterr().out
    assert "my run  finished" in said
    assert "80.0%" in said  # the last held-out accuracy
    for path in (folder / "report").rglob("*.*"):
        assert str(path) in said
    assert "kB" in said
    assert main(["report", str(folder)]) == 0  # once more: replaced
    assert {path.name for path in (folder / "report").iterdir()} == written


@pytest.mark.whole
def test_several_runs_have_it_where_the_command_is_given(tmp_path, make_run, monkeypatch, capsys):
    runs = [make_run(tmp_path / name, how=how) for name, how in (("one", "good"), ("two", "unfilled"))]
    before = [everything(run) for run in runs]
    monkeypatch.chdir(tmp_path)
    assert main(["report", "one", "two", str(runs[0])]) == 0  # named twice, shown once
    assert {path.name for path in (tmp_path / "dapo-report").iterdir()} == NEW
    assert not (runs[0] / "report").exists()
    assert [everything(run) for run in runs] == before
    said = capsys.readouterr().out
    assert "one  finished" in said
    assert "(2)" not in said
    assert "two  could not fill its batch" in said


def test_the_json_has_the_documented_keys_the_outcome_and_the_difference(tmp_path, make_run, capsys):
    one = make_run(tmp_path / "one", seed=1)
    two = make_run(tmp_path / "two", seed=1, how="crashed", settings={"learner": {"learning_rate": 1e-5}})
    assert main(["report", str(one), str(two), "--out", str(tmp_path / "out"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    keys = documented_keys("`dapo report`")
    assert set(found) == set(keys)
    assert [Path(file).name for file in found["files"]] == ["report.html", "trace.json"]
    first, second = found["runs"]
    nested = {"step", "accuracy", "low", "high", "key", "preset", "run"}  # of evaluations and difference
    assert set(first) | nested == set(keys["runs"])
    assert (first["run"], first["state"], second["state"]) == ("one", "finished", "failed")
    assert set(first["evaluations"][-1]) == {"step", "accuracy", "low", "high"}
    assert first["evaluations"][-1]["step"] == 12
    assert {"key": "learner.learning_rate", "preset": "1e-06", "run": "2e-06"} in first["difference"]
    assert set(found["comparison"]) == set(documented_keys("`dapo compare`, `comparison` of `dapo report`"))
    other = found["comparison"]["families"][1]
    assert other["name"] == "two, learner.learning_rate=1e-05, trainer.steps=22"
    assert set(other) == {"name", "runs", "mean", "low", "high", "difference"}
    assert main(["report", str(one), "--out", str(tmp_path / "out"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["comparison"] is None


def test_a_folder_of_ones_own(tmp_path, make_run):
    folder = make_run(tmp_path / "run")
    assert main(["report", str(folder), "--out", str(tmp_path / "a" / "b")]) == 0
    assert (tmp_path / "a" / "b" / "report.html").is_file()
    assert not (folder / "report").exists()


def test_what_is_refused(tmp_path, make_run, capsys):
    folder = make_run(tmp_path / "run")
    assert main(["report", str(tmp_path / "ran"), str(folder)]) == 2
    assert f"Runs in {tmp_path}: run" in " ".join(capsys.readouterr().err.split())
    assert not (folder / "report").exists()
    assert main(["report", str(folder), "--budget-mb", "0.1"]) == 2
    assert "--budget-mb" in capsys.readouterr().err
    assert main(["report"]) == 2
    (tmp_path / "file").write_text("")
    assert main(["report", str(folder), "--out", str(tmp_path / "file")]) == 2
    assert "--out" in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_run_of_someone_else_is_read_and_the_report_refused(tmp_path, make_run, capsys):
    folder = make_run(tmp_path / "run")
    folder.chmod(0o500)
    assert main(["report", str(folder)]) == 2
    assert "--out" in capsys.readouterr().err


def test_hostile_names_and_messages_do_not_steer_the_terminal(tmp_path, make_run, capsys):
    folder = make_run(tmp_path / "\x1b[31mred", how="crashed", text=lambda s, n, g: HOSTILE)
    status = folder / "status.json"
    status.write_text(status.read_text().replace("out of memory", "\\u001b[2J gone"))
    assert main(["report", str(folder)]) == 0
    said = capsys.readouterr().out
    assert "\x1b" not in said
    assert "␛[31mred" in said


def test_a_run_that_writes_while_it_is_read(tmp_path, make_run):
    folder = make_run(tmp_path / "run", how="running")
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 13, "train/en')
        file.flush()
        (folder / "rollouts" / ".step_000013.parquet.tmp").write_bytes(b"PAR1")
        assert main(["report", str(folder)]) == 0
    assert (folder / "metrics.jsonl").read_text().endswith('{"step": 13, "train/en')
    assert (folder / "rollouts" / ".step_000013.parquet.tmp").exists()


@pytest.mark.whole
def test_no_torch_is_loaded(tmp_path, make_run):
    folder = make_run(tmp_path / "run")
    code = (
        "import sys; from dapo.cli.main import main; assert main(sys.argv[1:]) == 0; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, "report", str(folder)], check=True, capture_output=True)
