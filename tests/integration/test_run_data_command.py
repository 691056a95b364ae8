"""``dapo data`` on real runs: the prompts file, a finished run and one that stopped."""

import io

import numpy as np
import pyarrow.parquet as pq
import pytest
from rich.console import Console as RichConsole
from small_run import dapo, write_recipe

from dapo.checkpoint.tree import load_tree
from dapo.observe.metrics import read_metrics
from dapo.observe.prompts import History, Standing, read_prompts
from dapo.observe.rollouts import read_rollouts
from dapo.types.enums import Verdict


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    dapo("train", write_recipe(folder))
    return folder / "run"


def files(folder):
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in folder.rglob("*")}


def words(text, start):
    (line,) = [line for line in text.splitlines() if line.strip().startswith(start)]
    return line.split()


def test_the_prompts_file_holds_what_was_trained_on(run):
    table = read_prompts(run / "prompts.parquet").to_pylist()
    assert len(table) == 64
    assert {row["source"] for row in table} == {"signed_sum"}
    rollouts = read_rollouts(run / "rollouts").to_pylist()
    answers = {row["id"]: row["answer"] for row in table}
    assert all(answers[row["prompt_id"]] == row["answer"] for row in rollouts)


def test_the_history_agrees_with_the_rollouts(run):
    """Every judged group stands in the rollouts of the step that judged it: from there the history is made anew."""
    history = History.from_state(load_tree(run / "checkpoints" / "step_000006", "state")["collector"]["history"])
    assert history.size == 64
    seen = {name: [0, 0, 0, 0, "", 0] for name in history.ids}
    judged = set()
    for file in sorted((run / "rollouts").glob("step_*.parquet")):
        groups = {}
        for row in pq.read_table(file).to_pylist():
            groups.setdefault(row["group"], []).append(row)
        for number, rows in groups.items():
            if number in judged:
                continue
            judged.add(number)
            record = seen[rows[0]["prompt_id"]]
            votes = [row["accuracy"] for row in rows if row["accuracy"] is not None]
            record[0] += 1
            record[1] += len(votes)
            record[2] += sum(vote >= 1 for vote in votes)
    assert history.visits.tolist() == [record[0] for record in seen.values()]
    assert history.correct.tolist() == [record[2] for record in seen.values()]
    assert history.responses.sum() == sum(record[1] for record in seen.values())
    assert sum(history.standing(standing) for standing in Standing).tolist() == [1] * len(seen)


def test_the_overview_agrees_with_the_files_and_writes_nothing(run):
    before = files(run)
    text = dapo("data", run).stdout
    assert files(run) == before
    rows = read_metrics(run / "metrics.jsonl")
    history = History.from_state(load_tree(run / "checkpoints" / "step_000006", "state")["collector"]["history"])
    for standing in (Standing.SOLVED, Standing.USEFUL, Standing.HOPELESS):
        assert words(text, f"{standing}  ")[1] == f"{history.standing(standing).sum()}"
    assert words(text, "never seen  ")[2] == f"{history.unseen}"
    generated = rows[-1]["counters/generated_tokens"]
    assert words(text, "generated  ")[1] == f"{generated:,.0f}"
    spent = [float(words(text, f"{name}  ")[1].replace(",", "")) for name in ("trained", "rejected", "held")]
    assert sum(spent) == generated
    judged = [row["groups/finished"] for row in rows[1:] if row["groups/finished"]]  # carried groups may fill a batch
    assert f"{sum(judged):,.0f} groups judged in the last {len(judged)} steps" in text
    assert "groups kept:" in text


def test_a_run_that_stopped_is_explained(tmp_path):
    recipe = write_recipe(tmp_path)
    hard = ["rewards.0.pattern=never to be met", "algorithm.dynamic_sampling.cap.groups=3"]
    stopped = dapo("train", recipe, *hard, expect=1)
    assert "all wrong" in stopped.stderr
    text = " ".join(dapo("data", tmp_path / "run").stdout.split())
    assert "12 groups judged in the step that could not be filled: 100.0% all wrong." in text
    spent = int(stopped.stderr.split(" tokens were generated")[0].split()[-1])
    assert f"rejected {spent:,} 100.0%" in text  # the step that stopped has no row, and its tokens were spent
    assert "the problems are too hard, or the verifier cannot read the answers." in text  # most are truncated, too
    assert (tmp_path / "run" / "prompts.parquet").exists()


@pytest.mark.whole
def test_an_older_run_gets_its_prompts_file_at_the_next_resume(run, tmp_path):
    import shutil

    copy = shutil.copytree(run, tmp_path / "run")
    written = (run / "prompts.parquet").read_bytes()
    (copy / "prompts.parquet").unlink()
    assert "no prompts at" in " ".join(dapo("data", copy).stdout.split())
    dapo("train", "--resume", copy, "trainer.steps=7")
    assert (copy / "prompts.parquet").read_bytes() == written
    time = (copy / "prompts.parquet").stat().st_mtime_ns
    dapo("train", "--resume", copy)
    assert (copy / "prompts.parquet").stat().st_mtime_ns == time  # written once


def test_the_verdicts_of_a_history_are_numbered_as_they_are_here(run):
    state = load_tree(run / "checkpoints" / "step_000006", "state")["collector"]["history"]
    kept = [list(Verdict)[int(v)] is Verdict.KEPT for v in state["verdict"]]
    mixed = (state["last_correct"] > 0) & (state["last_correct"] < state["last_responses"])
    np.testing.assert_array_equal(kept, mixed)


def test_the_recorder_hands_the_filling_batch_to_the_console(tmp_path):
    from dapo.config import recipe_from_dict
    from dapo.observe.callbacks import Callbacks
    from dapo.observe.console import Console
    from dapo.observe.recorder import RunRecorder
    from dapo.observe.run_folder import RunFolder
    from dapo.observe.status import StatusWriter
    from dapo.types.evidence import CollectProgress, Shares

    rich = RichConsole(file=io.StringIO(), width=300)
    console = Console("plain", rich)
    console.start("r", 10)
    a_recipe = recipe_from_dict({"model": {"path": "a/b"}, "data": {"train": [{"task": "signed_sum"}]}}).recipe
    recorder = RunRecorder(RunFolder(tmp_path), console, a_recipe)
    recorder.open(Callbacks(), StatusWriter(tmp_path / "status.json", 10))
    recorder.filling(
        CollectProgress(3, kept=1, wanted=4, judged=16, shares=Shares(kept=0.06, all_correct=0.94, judged=16))
    )
    recorder.close()
    assert "step 3: 1 of 4 groups kept, 6% of those judged, 16 groups judged. 94% of the groups" in rich.file.getvalue()
