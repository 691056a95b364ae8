"""A whole run through the command line: files, numbers, resume after a kill at any moment."""

import json
import math
import os
import random
import re
import resource
import shutil
import signal
import time

import pytest
import warm
from safetensors.numpy import load_file
from small_run import assert_none_lost_or_doubled, dapo, write_recipe

from dapo import __version__
from dapo.checkpoint.tree import load_tree
from dapo.cli.main import main
from dapo.config.load import load_recipe
from dapo.engines.embedded import EmbeddedEngine
from dapo.errors import EngineError, SamplingStopped
from dapo.loop.evaluation import Evaluator
from dapo.loop.reinforcement import Reinforcement
from dapo.metrics.glossary import lookup
from dapo.observe.jsonl import read_jsonl
from dapo.observe.metrics import MetricWriter, read_metrics, without_clock
from dapo.observe.rollouts import read_rollouts
from dapo.observe.run_lock import is_held
from dapo.observe.status import read_status
from dapo.observe.tokens import read_tokens
from dapo.run.train import resume, train


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """One uninterrupted run in a process of its own, and what it said."""
    folder = tmp_path_factory.mktemp("whole")
    said = folder / "said"
    assert warm.run(main, ["train", str(write_recipe(folder))], output=said) == 0
    return folder / "run", said.read_text()


def weights(run, step=6):
    (file,) = (run / "checkpoints" / f"step_{step:06d}" / "learner").glob("*.safetensors")
    return {n.removeprefix("model/"): tensor for n, tensor in load_file(file).items() if n.startswith("model/")}


def same(a, b):
    assert a.keys() == b.keys()
    assert all((a[key].tobytes() == b[key].tobytes()) for key in a)


def test_the_gap_is_the_samplers_against_the_learners(finished):
    """Tokens of the present weights agree to rounding, never to the bit; carried ones lag behind."""
    rows = read_metrics(finished[0] / "metrics.jsonl")[1:]
    assert len(rows) == 6
    older = [row["train/gap_mean_older"] for row in rows if "train/gap_mean_older" in row]
    assert len(older) >= 3, "no carried tokens: the run shows nothing"
    assert all(0 < row["train/gap_mean_current"] < 1e-4 for row in rows if "train/gap_mean_current" in row)
    assert all(0 < row["train/gap_max"] < 20 for row in rows)
    assert min(older) > 1e-3


def test_a_run_leaves_everything_that_was_promised(finished):
    run, said = finished
    rows = read_metrics(run / "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(7))
    assert [row["step"] for row in rows if "validation/accuracy" in row] == [0, 3, 6]
    assert all(lookup(key) for row in rows for key in row)
    assert sorted(p.name for p in (run / "checkpoints").iterdir()) == ["step_000004", "step_000006"]
    assert (run / "recipe.yaml").exists()
    (machine,) = read_jsonl(run / "machine.jsonl")
    assert (machine["step"], machine["engine"], machine["threads"]) == (0, "embedded", "1")
    assert machine["versions"]["dapo"] == __version__
    assert "trainer.steps" in (run / "difference.txt").read_text()
    assert (run / "curve.png").stat().st_size > 5000
    assert "held-out" in said
    assert "6/6" in said


def test_engines_files_hold_every_group_and_agree_with_the_metrics(finished):
    run, _ = finished
    for row in read_metrics(run / "metrics.jsonl")[1:]:
        table = read_rollouts(run / "rollouts" / f"step_{row['step']:06d}.parquet").to_pylist()
        trained = [r for r in table if r["disposition"] == "trained"]
        assert len({r["group"] for r in trained}) == row["groups/trained"] == 4
        assert len(trained) == 16
        judged_now = {r["group"]: r["verdict"] for r in table}
        assert list(judged_now.values()).count("all_wrong") == row["groups/all_wrong"]
        for r in trained:
            assert len(r["token_ids"]) == len(r["logprobs"]) == len(r["versions"]) == r["length"]
            assert r["advantage"] is not None


def test_token_records_agree_with_the_rollouts_and_the_metrics(finished):
    """Three of the four trained groups, and one that never trained where there is one."""
    run, _ = finished
    for row in read_metrics(run / "metrics.jsonl")[1:]:
        rollouts = {
            (r["group"], r["sample"]): r
            for r in read_rollouts(run / "rollouts" / f"step_{row['step']:06d}.parquet").to_pylist()
        }
        records = read_tokens(run / "tokens" / f"step_{row['step']:06d}.parquet").to_pylist()
        groups = {r["group"]: rollouts[r["group"], 0]["disposition"] for r in records}
        rejected = [r for r in rollouts.values() if r["disposition"] == "discarded"]
        assert sorted(groups.values()) == ["discarded"] * bool(rejected) + ["trained"] * 3
        for r in records:
            rollout = rollouts[r["group"], r["sample"]]
            assert r["sampler"] == rollout["logprobs"]
            assert r["versions"] == rollout["versions"]
            text = "".join(piece for piece, i in zip(r["pieces"], rollout["token_ids"], strict=True) if i > 2)
            assert text == rollout["response"]  # without the special tokens 0, 1 and 2
            trained = rollout["disposition"] == "trained" and rollout["voter"]
            for name in ("learner", "old", "ratio", "entropy", "clip"):
                assert (r[name] is not None) == trained, name
            if trained:
                assert r["old"] == r["sampler"]  # old_logprobs: sampler
                assert min(r["entropy"]) >= 0
                expected = [math.exp(a - b) for a, b in zip(r["learner"], r["old"], strict=True)]
                assert r["ratio"] == pytest.approx(expected, rel=1e-4)
                assert (
                    row["train/ratio_min"] - 1e-6 <= min(r["ratio"]) <= max(r["ratio"]) <= row["train/ratio_max"] + 1e-6
                )


def test_spans_tell_what_the_metrics_add_up(finished):
    """At most 200 lines a step, inside the run's own time; a phase inside another counts in both."""
    run, _ = finished
    status, lines = read_status(run / "status.json"), read_jsonl(run / "spans.jsonl")
    assert (status.state, status.said, status.step, status.steps) == ("finished", "", 6, 6)
    for row in read_metrics(run / "metrics.jsonl")[1:]:
        of_step = [line for line in lines if line["step"] == row["step"]]
        made = {"generate", "score", "judge"} if row["sampling/generated_tokens"] else set()  # else carried groups do
        assert {"shape", "learn", "publish", "report"} | made <= {s["name"] for s in of_step}
        assert len(of_step) <= 200
        assert all(status.started <= s["start"] <= s["start"] + s["seconds"] <= status.updated for s in of_step)
        learned = sum(s["busy"] for s in of_step if s["name"] == "learn")
        assert learned == pytest.approx(row["time/learn"], abs=1e-4)
        others = ("time/step", "time/engine_idle", "time/learner_idle")
        phases = sum(v for k, v in row.items() if k.startswith("time/") and "tokens" not in k and k not in others)
        assert phases == pytest.approx(row["time/step"], abs=1e-6)
    assert {line["step"] for line in lines if line["name"] == "save"} == {2, 4, 6}
    assert {line["step"] for line in lines if line["name"] == "evaluate"} == {0, 3, 6}


@pytest.mark.whole
def test_what_is_recorded_does_not_change_what_is_trained(finished, tmp_path):
    whole, _ = finished
    off = ["logging.tokens=0", "logging.spans=false", "logging.rollouts=none", "logging.console=quiet"]
    assert train(load_recipe(write_recipe(tmp_path), off)) == 0
    run = tmp_path / "run"
    same(weights(run), weights(whole))
    assert not (run / "tokens").exists()
    assert not (run / "rollouts").exists()
    assert not (run / "spans.jsonl").exists()
    assert read_status(run / "status.json").state == "finished"


@pytest.mark.whole
@pytest.mark.parametrize(("which", "groups"), [("2", 2), ("kept", None), ("none", None)])
def test_token_records_are_of_groups_that_the_rollouts_hold(tmp_path, which, groups):
    over = [f"logging.rollouts={which}", "logging.console=quiet", "trainer.steps=3"]
    assert train(load_recipe(write_recipe(tmp_path), over)) == 0
    run, seen = tmp_path / "run", 0
    for file in (run / "tokens").iterdir():
        records = read_tokens(file).to_pylist()
        seen += len({r["group"] for r in records})
        if which != "none":
            known = {r["group"] for r in read_rollouts(run / "rollouts" / file.name).to_pylist()}
            assert {r["group"] for r in records} <= known
    assert seen
    if groups:
        assert seen <= 3 * groups


def test_a_run_that_does_not_fill_and_one_that_fails_say_so(tmp_path, monkeypatch):
    never = ["rewards.0.pattern=never", "algorithm.dynamic_sampling.cap.groups=2", "logging.console=quiet"]
    with pytest.raises(SamplingStopped) as stopped:
        train(load_recipe(write_recipe(tmp_path), never))
    run = tmp_path / "run"
    status = read_status(run / "status.json")
    assert (status.state, status.said, status.step) == ("unfilled", str(stopped.value), 0)
    assert str(run) in status.said
    assert {line["name"] for line in read_jsonl(run / "spans.jsonl") if line["step"] == 1} >= {"generate", "judge"}
    assert not is_held(run)

    def failing(self, *_):
        seen.append(read_status(run / "status.json"))
        raise ValueError("two\nlines")

    seen = []
    monkeypatch.setattr(Reinforcement, "prepare", failing)
    with pytest.raises(ValueError):
        resume(run, [])
    assert [s.state for s in seen] == ["running"]
    after = read_status(run / "status.json")
    assert after.state == "failed"
    assert re.fullmatch(r"ValueError: two lines, in failing \(test_run_end_to_end.py, line \d+; .*\)", after.said)
    assert 'raise ValueError("two' in (run / "log.txt").read_text()
    assert after.started == status.started


def with_a_limit_on_files(size, arguments):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    return main(arguments)


@pytest.mark.whole
def test_a_disk_that_takes_no_more_is_told_in_one_line_and_the_run_goes_on_later(tmp_path):
    """A limit on the size of files stands for it: the checkpoint's weights are the first to meet it."""
    recipe, run = write_recipe(tmp_path), tmp_path / "run"
    assert warm.run(with_a_limit_on_files, 12 * 1024, ["train", str(recipe)], output=tmp_path / "said") == 1
    said = (tmp_path / "said").read_text()
    assert "Traceback" not in said
    assert f"{run} cannot be written: File too large" in " ".join(said.split())
    status = read_status(run / "status.json")
    assert status.state == "failed"
    assert status.said.startswith("DiskError: ")
    dapo("train", "--resume", run)
    assert [row["step"] for row in read_metrics(run / "metrics.jsonl")] == list(range(7))


def test_the_reward_rises_when_it_can(finished):
    run, _ = finished
    accuracy = [row["reward/accuracy"] for row in read_metrics(run / "metrics.jsonl")[1:]]
    assert accuracy[-1] > accuracy[0] + 0.1


@pytest.mark.whole
@pytest.mark.parametrize("seed", [0, 1])
def test_killed_at_random_moments_and_resumed_it_is_the_same_run_to_the_bit(finished, tmp_path, seed):
    whole, _ = finished
    rng = random.Random(seed)
    recipe = write_recipe(tmp_path)
    run = tmp_path / "run"
    arguments = ["train", str(recipe)]
    for _ in range(3):
        process = warm.start(main, arguments)
        # wait until some further step is written, then a random moment: within a step, a save, an evaluation
        seen, deadline = len(read_metrics(run / "metrics.jsonl")), time.monotonic() + 120
        while process.is_alive() and time.monotonic() < deadline:
            if len(read_metrics(run / "metrics.jsonl")) > seen + rng.randint(0, 2):
                break
            time.sleep(0.005)
        time.sleep(rng.random() * 0.3)
        process.kill()
        process.join()
        status = read_status(run / "status.json")
        assert status is None or status.state in ("running", "finished")
        assert not is_held(run)
        arguments = ["train", "--resume", str(run)]  # before the first checkpoint too: then from the beginning
    dapo(*arguments)
    same(weights(run), weights(whole))
    expected = [without_clock(row) for row in read_metrics(whole / "metrics.jsonl")]
    assert [without_clock(row) for row in read_metrics(run / "metrics.jsonl")] == expected
    for file in (whole / "rollouts").iterdir():
        assert read_rollouts(run / "rollouts" / file.name).equals(read_rollouts(file))
    assert sorted(p.name for p in (run / "tokens").iterdir()) == sorted(p.name for p in (whole / "tokens").iterdir())
    for file in (whole / "tokens").iterdir():
        assert read_tokens(run / "tokens" / file.name).equals(read_tokens(file))
    assert {line["step"] for line in read_jsonl(run / "spans.jsonl")} == set(range(7))
    assert read_status(run / "status.json").state == "finished"


@pytest.mark.whole
def test_an_engine_that_fails_stops_the_run_with_everything_kept(tmp_path, monkeypatch):
    loaded = load_recipe(write_recipe(tmp_path), ["logging.console=quiet", "checkpoint.every=0"])
    own, since = EmbeddedEngine._step, []

    def failing(self):
        since.append(self.version)
        if since.count(2) == 3 and self.version == 2:  # two tokens into what was sampled after the second step
            raise EngineError("the device fell off the bus")
        return own(self)

    monkeypatch.setattr(EmbeddedEngine, "_step", failing)
    with pytest.raises(EngineError, match="fell off the bus"):
        train(loaded)
    run = tmp_path / "run"
    reached = read_metrics(run / "metrics.jsonl")[-1]["step"]
    assert reached == 2
    state = load_tree(run / "checkpoints" / f"step_{reached:06d}", "state")
    assert (
        sum(
            len(p["token_ids"])
            for group in state["collector"]["open"]
            for p in group["completions_G"]
            if p["finish"] is None
        )
        > 0
    )
    assert resume(run, []) == 0
    assert_none_lost_or_doubled(run, 6)


@pytest.mark.whole
def test_an_engine_that_fails_in_an_evaluation_leaves_the_step_whole(tmp_path, monkeypatch):
    loaded, times = load_recipe(write_recipe(tmp_path), ["logging.console=quiet", "checkpoint.every=0"]), []

    def failing(self):
        times.append(1)
        if len(times) == 2:  # after step 3
            raise EngineError("the device fell off the bus")
        return own(self)

    own = Evaluator.evaluate
    monkeypatch.setattr(Evaluator, "evaluate", failing)
    with pytest.raises(EngineError, match="fell off the bus"):
        train(loaded)
    run = tmp_path / "run"
    rows = read_metrics(run / "metrics.jsonl")
    assert rows[-1]["step"] == rows[-1]["counters/training_steps"] == 3
    assert "validation/accuracy" not in rows[-1]
    assert (run / "checkpoints" / "step_000003").is_dir()
    assert resume(run, []) == 0
    assert_none_lost_or_doubled(run, 6)


def test_an_engine_that_does_not_start_leaves_no_run_behind(tmp_path):
    recipe = write_recipe(tmp_path)
    over = ["rollout.engine=vllm_server", "rollout.server.url=http://127.0.0.1:9", "rollout.server.patience=0.5"]
    said = dapo("train", recipe, *over, expect=1).stderr
    assert "no vLLM server answered at http://127.0.0.1:9" in said
    assert not (tmp_path / "run").exists()


@pytest.mark.whole
def test_evaluation_does_not_change_what_is_trained(finished, tmp_path):
    run, _ = finished
    dapo("train", write_recipe(tmp_path), "validation.every=0")
    same(weights(tmp_path / "run"), weights(run))


def test_the_split_into_micro_batches_does_not_change_what_is_trained(finished, tmp_path):
    run, _ = finished
    dapo("train", write_recipe(tmp_path), "learner.microbatch_tokens=64", "trainer.steps=2")
    first = read_metrics(tmp_path / "run" / "metrics.jsonl")
    whole = read_metrics(run / "metrics.jsonl")
    assert first[1]["train/micro_batches"] > whole[1]["train/micro_batches"]
    assert first[1]["train/grad_norm"] == pytest.approx(whole[1]["train/grad_norm"], rel=1e-5)


def stopped_in_the_first_step(arguments):
    """Ctrl-C comes as soon as the first step's line is written: before the step is over."""
    write = MetricWriter.write

    def writing(self, step, metrics):
        write(self, step, metrics)
        if step == 1:
            os.kill(os.getpid(), signal.SIGINT)

    MetricWriter.write = writing
    return main(arguments)


def test_ctrl_c_finishes_the_step_saves_and_resumes_to_the_same_end(finished, tmp_path):
    whole, _ = finished
    recipe, run = write_recipe(tmp_path), tmp_path / "run"
    code = warm.run(stopped_in_the_first_step, ["train", str(recipe)], output=tmp_path / "said")
    output = (tmp_path / "said").read_text()
    assert code == 130, output
    done = read_metrics(run / "metrics.jsonl")[-1]["step"]
    assert done == 1
    assert (run / "checkpoints" / f"step_{done:06d}").is_dir()
    assert f"dapo train --resume {run}" in output
    status = read_status(run / "status.json")
    assert (status.state, status.step) == ("interrupted", done)
    assert f"after step {done}" in status.said
    dapo("train", "--resume", run)
    same(weights(run), weights(whole))
    assert [line["step"] for line in read_jsonl(run / "machine.jsonl")] == [0, done]


def test_resume_names_what_may_change_and_refuses_what_may_not(finished, tmp_path):
    run, _ = finished
    copy = shutil.copytree(run, tmp_path / "run")
    refused = dapo("train", "--resume", copy, "run.seed=9", expect=2)
    assert "run.seed" in refused.stderr
    assert "fixed" in refused.stderr
    longer = dapo("train", "--resume", copy, "trainer.steps=7")
    assert "trainer.steps: 6 -> 7" in longer.stdout
    assert read_metrics(copy / "metrics.jsonl")[-1]["step"] == 7


def test_a_checkpoint_of_another_model_is_refused_by_its_difference(finished, tmp_path):
    from dapo.models.tiny import make_tiny_model

    run = shutil.copytree(finished[0], tmp_path / "run")
    recipe, model = run / "recipe.resolved.yaml", tmp_path / "model"
    recipe.write_text(recipe.read_text().replace(str(finished[0].parent / "model"), str(model)))
    before = recipe.read_text()
    assert str(model) in before
    make_tiny_model(model, "llama", hidden=32, seed=0)
    refused = dapo("train", "--resume", run, "trainer.steps=8", expect=2)
    assert "another model" in refused.stderr
    assert "hidden_size" in refused.stderr
    assert recipe.read_text() == before  # a refusal changes nothing
    assert len(read_metrics(run / "metrics.jsonl")) == 7
    assert read_status(run / "status.json").state == "finished"


def test_export_and_evaluate_speak_of_the_trained_weights(finished, tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    run, _ = finished
    dapo("export", run, tmp_path / "out")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    AutoTokenizer.from_pretrained(tmp_path / "out")
    trained = weights(run)
    for name, tensor in model.state_dict().items():
        if name in trained:
            assert (tensor.numpy() == trained[name]).all(), name
    evaluated = dapo("evaluate", run, "--samples", "2", "--json")
    last = read_metrics(run / "metrics.jsonl")[-1]
    numbers = json.loads(evaluated.stdout)
    assert numbers["step"] == last["step"]
    assert numbers["sets"]["held_out"]["accuracy"] == pytest.approx(last["validation/accuracy"], abs=1e-6)
    assert "trained for 6 steps" in (tmp_path / "out" / "README.md").read_text()
    of_export = dapo(
        "evaluate",
        tmp_path / "out",
        "rewards.0.kind=regex",
        "rewards.0.pattern='=1'",
        "rollout.max_response_tokens=24",
        "--data",
        "task:signed_sum",
        "--limit",
        "5",
    )
    assert "accuracy, greedy" in of_export.stdout
