"""A run with every tracker, and a resume of it, read back with each package's own reader. Nothing leaves the machine.

MLflow writes into an SQLite file; W&B is offline; trackio and TensorBoard are local as they come.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from small_run import command, environment, write_recipe

from dapo.observe.metrics import read_metrics

pytestmark = [pytest.mark.trackers, pytest.mark.timeout(900)]
NAMES = ("tensorboard", "wandb", "mlflow", "trackio")
THERE = [name for name in NAMES if find_spec(name)]


def needs(name):
    return pytest.mark.skipif(name not in THERE, reason=f"{name} is not installed here: make test-trackers installs it")


def own(folder: Path) -> dict[str, str]:
    """Variables that keep all of them in ``folder``."""
    return environment() | {
        "HOME": str(folder),
        "WANDB_MODE": "offline",
        "TRACKIO_DIR": str(folder / "trackio"),
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db",
    }


def typed(folder: Path, *arguments: str | Path, **variables: str) -> str:
    done = subprocess.run(
        command(*arguments), cwd=folder, env=own(folder) | variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run of three steps that another process takes to five, with all trackers that are installed."""
    if not THERE:
        pytest.skip(f"none of {', '.join(NAMES)} is installed here: make test-trackers installs them")
    folder = tmp_path_factory.mktemp("trackers")
    recipe = write_recipe(folder)
    named = [kind if kind == "tensorboard" else f"{{kind: {kind}, project: sums}}" for kind in THERE]
    asked = [f"logging.trackers=[{', '.join(named)}]"]
    began = typed(folder, "train", recipe, "trainer.steps=3", *asked)
    went_on = typed(folder, "train", "--resume", folder / "run", "trainer.steps=5")
    for name in THERE:
        assert f"warning: {name}" not in began + went_on
    return folder


@pytest.fixture(scope="module")
def expected(folder):
    """By metric: its finite values by step, of the evaluation before the first step too."""
    found: dict[str, dict[int, float]] = {}
    for row in read_metrics(folder / "run/metrics.jsonl"):
        for key, value in row.items():
            if key != "step" and isinstance(value, int | float) and math.isfinite(value):
                found.setdefault(key, {})[row["step"]] = float(value)
    assert set(found["train/loss"]) == {1, 2, 3, 4, 5}
    assert set(found["validation/accuracy"]) == {0, 3, 5}
    return found


def close(values, expected, relative=1e-6):
    """To the digits that a float32 has."""
    assert values == {step: pytest.approx(value, rel=relative, abs=1e-12) for step, value in expected.items()}


def has_each_once(lines, expected):
    """Every number of every step, and none twice: a resume adds to what is there.

    Args:
        lines: what was logged, a step and some of its numbers each.
        expected: as the fixture.
    """
    found: dict[str, dict[int, float]] = {}
    for step, line in lines:
        for key in expected.keys() & line.keys():
            assert step not in found.setdefault(key, {}), (key, step)
            found[key][step] = line[key]
    assert found.keys() == expected.keys()
    for key, values in expected.items():
        close(found[key], values)


@needs("tensorboard")
def test_tensorboard_has_every_number_of_every_step_once(folder, expected):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "run/tensorboard"))
    events.Reload()
    assert set(events.Tags()["scalars"]) == set(expected)
    has_each_once([(event.step, {key: event.value}) for key in expected for event in events.Scalars(key)], expected)


@needs("mlflow")
def test_mlflow_has_one_run_with_every_metric_its_settings_and_the_answers(folder, expected, monkeypatch):
    from mlflow import MlflowClient

    monkeypatch.chdir(folder)  # artifacts of an SQLite store lie in ./mlruns
    client = MlflowClient(tracking_uri=f"sqlite:///{folder}/mlflow.db")
    experiment = client.get_experiment_by_name("sums")
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == ("run", "FINISHED")
    assert run.data.params["rollout.group_size"] == "4"
    for key in ("train/loss", "validation/accuracy", "validation/pass@2", "time/step"):
        logged = client.get_metric_history(run.info.run_id, key.replace("@", "_"))
        assert len(logged) == len(expected[key]), key
        close({metric.step: metric.value for metric in logged}, expected[key])
    assert {key.replace("@", "_") for key in expected} == set(run.data.metrics)
    tables = {Path(item.path).name: item.path for item in client.list_artifacts(run.info.run_id, "answers")}
    assert set(tables) == {f"step_{step:06d}.json" for step in (0, 3, 5)}
    there = client.download_artifacts(run.info.run_id, tables["step_000005.json"], str(folder))
    table = json.loads(Path(there).read_text())
    assert {"problem", "gold answer", "response", "accuracy"} <= set(table["columns"])
    assert len(table["data"]) == 18  # six problems: greedy, and two samples each


@needs("trackio")
def test_trackio_has_one_run_with_every_metric(folder, expected):
    code = (
        "import json, sys, trackio\n"
        "(run,) = trackio.Api().runs('sums')\n"
        "from trackio.sqlite_storage import SQLiteStorage as store\n"
        "json.dump([run.name, run.config, store.get_logs('sums', run.name)], open(sys.argv[1], 'w'), default=str)\n"
    )
    out = folder / "trackio.json"
    subprocess.run([sys.executable, "-c", code, str(out)], env=own(folder), check=True)  # it reads TRACKIO_DIR once
    name, config, logs = json.loads(out.read_text())
    assert name == "run"
    assert config["rollout"]["group_size"] == 4
    has_each_once([(line["step"], line) for line in logs], expected)


@needs("wandb")
def test_the_file_of_wandb_has_every_metric_the_answers_and_one_id(folder, expected):
    from wandb_file import history, records

    files = sorted((folder / "run").glob("wandb/offline-run-*/run-*.wandb"), key=lambda file: file.stat().st_mtime_ns)
    assert len(files) == 2  # one of each process, under one id: `wandb sync` makes one run of them
    assert len({file.name for file in files}) == 1
    lines = [line for file in files for line in history(file)]
    has_each_once([(line["step"], line) for line in lines], expected)
    assert {line["step"] for line in lines if any(key.split("/")[0] == "answers" for key in line)} == {0, 3, 5}
    for file in files:
        (run,) = {(r.run.project, r.run.display_name) for r in records(file) if r.HasField("run")}
        assert run == ("sums", "run")
        assert [r.exit.exit_code for r in records(file) if r.HasField("exit")] == [0]
        (table,) = list(file.parent.glob("files/media/table/answers_*.table.json"))[-1:]
        assert "response" in json.loads(table.read_text())["columns"]
