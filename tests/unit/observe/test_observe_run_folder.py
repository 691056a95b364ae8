import json
import os
import subprocess
import sys

import pytest

from dapo.errors import DataError, RecipeError
from dapo.observe.metrics import MetricWriter, read_metrics
from dapo.observe.run_folder import RunFolder

HOLD = """
import sys, time
from dapo.observe.run_folder import RunFolder
run = RunFolder.create(sys.argv[1], "r")
print("held", flush=True)
if len(sys.argv) > 2:
    import os
    if os.fork() == 0:  # a worker that outlives its parent
        print(os.getpid(), flush=True)
        time.sleep(60)
        os._exit(0)
time.sleep(60)
"""


def hold(tmp_path, *more):
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path), *more], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    return process


def test_paths(tmp_path):
    run = RunFolder.create(tmp_path, "r")
    root = tmp_path / "r"
    assert run.path == root
    assert run.metrics == root / "metrics.jsonl"
    assert run.resolved_recipe == root / "recipe.resolved.yaml"
    assert run.rollout_file(12) == root / "rollouts" / "step_000012.parquet"
    assert run.checkpoint(3) == root / "checkpoints" / "step_000003"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/tmp/x"])
def test_a_name_that_leaves_the_folder_is_refused(tmp_path, name):
    with pytest.raises(RecipeError, match=r"run\.name"):
        RunFolder.create(tmp_path, name)


def test_an_existing_run_is_refused_with_the_ways_out(tmp_path):
    RunFolder.create(tmp_path, "r").release()
    with pytest.raises(RecipeError, match=r"--resume .*backup"):
        RunFolder.create(tmp_path, "r")


def test_an_empty_folder_is_taken(tmp_path):
    (tmp_path / "r").mkdir()
    assert RunFolder.create(tmp_path, "r").path.is_dir()


def test_backup_moves_aside_to_the_next_free_name(tmp_path):
    for _ in range(3):
        run = RunFolder.create(tmp_path, "r", if_exists="backup")
        run.write(run.difference, str(len(list(tmp_path.iterdir()))))
        run.release()
    (tmp_path / "r.x").mkdir()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["r", "r.1", "r.2", "r.x"]
    assert [(tmp_path / n / "difference.txt").read_text() for n in ("r.1", "r.2", "r")] == ["1", "2", "3"]


def test_open_names_the_runs_nearby(tmp_path):
    other = RunFolder.create(tmp_path, "other")
    other.write(other.resolved_recipe, "x")
    with pytest.raises(RecipeError, match=r"holds no run.*other"):
        RunFolder.open(tmp_path / "othr")
    assert RunFolder.open(other.path).path == other.path


def test_a_second_process_is_kept_out_until_the_first_dies(tmp_path):
    holder = hold(tmp_path)
    run = RunFolder(tmp_path / "r")
    with pytest.raises(RecipeError, match=f"pid {holder.pid}"):
        run.lock()
    with pytest.raises(RecipeError, match="written by another process"):
        RunFolder.create(tmp_path, "r", if_exists="backup")  # a running run is not moved away
    holder.kill()
    holder.wait()
    run.lock()
    run.release()


def test_a_worker_that_outlives_a_killed_run_does_not_hold_its_folder(tmp_path):
    holder = hold(tmp_path, "fork")
    worker = int(holder.stdout.readline())
    holder.kill()
    holder.wait()
    try:
        RunFolder(tmp_path / "r").lock()
    finally:
        os.kill(worker, 9)


def test_a_damaged_span_does_not_keep_a_run_from_going_on_and_a_damaged_metric_does(tmp_path, caplog):
    run = RunFolder.create(tmp_path, "r")
    run.spans.write_text('{"step": 1}\n{"step": 1, "na\n{"name": "no step"}\n[]\n{"step": 2}\n{"step": 3}\n')
    run.metrics.write_text('{"step": 1}\n')
    with caplog.at_level("WARNING"):
        run.cut_back(2)
    assert [json.loads(line)["step"] for line in run.spans.read_text().splitlines()] == [1, 2]
    assert "3 damaged lines are taken out" in caplog.text
    run.metrics.write_text('{"step": 1}\n{"st\n{"step": 2}\n')
    with pytest.raises(DataError, match="line 2 is not JSON"):
        run.cut_back(2)


def test_cut_back_removes_everything_later(tmp_path):
    run = RunFolder.create(tmp_path, "r")
    with MetricWriter(run.metrics) as writer:
        for step in range(5):
            writer.write(step, {"train/loss": 1.0})
    run.write(run.samples, '{"step": 2}\n{"step": 4}\n{"half')
    run.rollouts.mkdir()
    for step in (1, 2, 3):
        run.rollout_file(step).write_text("x")
    (run.rollouts / ".step_000004.parquet.tmp").write_text("x")
    run.cut_back(2)
    assert [row["step"] for row in read_metrics(run.metrics)] == [0, 1, 2]
    assert run.samples.read_text() == '{"step": 2}\n'
    assert sorted(p.name for p in run.rollouts.iterdir()) == ["step_000001.parquet", "step_000002.parquet"]
