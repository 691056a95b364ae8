"""A whole run through the command line: files, numbers, resume after a kill at any moment."""

import json
import random
import signal
import subprocess
import time

import pytest
from safetensors.numpy import load_file
from small_run import assert_none_lost_or_doubled, command, dapo, environment, write_recipe

from dapo.build.train import resume, train
from dapo.checkpoint.tree import load_tree
from dapo.config.load import load_recipe
from dapo.contracts.glossary import lookup
from dapo.errors import EngineError
from dapo.loop.evaluation import Evaluator
from dapo.observe.metrics import read_metrics, without_clock
from dapo.observe.rollouts import read_rollouts
from dapo.rollout.embedded import EmbeddedEngine


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """One uninterrupted run."""
    folder = tmp_path_factory.mktemp("whole")
    recipe = write_recipe(folder)
    done = dapo("train", recipe)
    return folder / "run", done


def weights(run, step=6):
    return load_file(next((run / "checkpoints" / f"step_{step:06d}" / "learner").glob("*model*.safetensors")))


def same(a, b):
    assert a.keys() == b.keys()
    assert all((a[key].tobytes() == b[key].tobytes()) for key in a)


def test_a_run_leaves_everything_that_was_promised(finished):
    run, done = finished
    rows = read_metrics(run / "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(7))
    assert [row["step"] for row in rows if "validation/accuracy" in row] == [0, 3, 6]
    assert all(lookup(key) for row in rows for key in row)
    assert sorted(p.name for p in (run / "checkpoints").iterdir()) == ["step_000004", "step_000006"]
    assert (run / "recipe.yaml").exists()
    assert "trainer.steps" in (run / "difference.txt").read_text()
    assert (run / "curve.png").stat().st_size > 5000
    assert "held-out" in done.stdout
    assert "6/6" in done.stdout


def test_rollout_files_hold_every_group_and_agree_with_the_metrics(finished):
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


def test_the_reward_rises_when_it_can(finished):
    run, _ = finished
    accuracy = [row["reward/accuracy"] for row in read_metrics(run / "metrics.jsonl")[1:]]
    assert accuracy[-1] > accuracy[0] + 0.1


@pytest.mark.parametrize("seed", [0, 1])
def test_killed_at_random_moments_and_resumed_it_is_the_same_run_to_the_bit(finished, tmp_path, seed):
    whole, _ = finished
    rng = random.Random(seed)
    recipe = write_recipe(tmp_path)
    run = tmp_path / "run"
    arguments = ["train", str(recipe)]
    for _ in range(3):
        process = subprocess.Popen(
            command(*arguments), env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        # wait until some further step is written, then a random moment: within a step, a save, an evaluation
        seen, deadline = len(read_metrics(run / "metrics.jsonl")), time.monotonic() + 120
        while process.poll() is None and time.monotonic() < deadline:
            if len(read_metrics(run / "metrics.jsonl")) > seen + rng.randint(0, 2):
                break
            time.sleep(0.005)
        time.sleep(rng.random() * 0.3)
        process.send_signal(signal.SIGKILL)
        process.wait()
        arguments = ["train", "--resume", str(run)]  # before the first checkpoint too: then from the beginning
    dapo(*arguments)
    same(weights(run), weights(whole))
    expected = [without_clock(row) for row in read_metrics(whole / "metrics.jsonl")]
    assert [without_clock(row) for row in read_metrics(run / "metrics.jsonl")] == expected
    for file in (whole / "rollouts").iterdir():
        assert read_rollouts(run / "rollouts" / file.name).equals(read_rollouts(file))


def test_an_engine_that_fails_stops_the_run_with_everything_kept(tmp_path, monkeypatch):
    loaded, steps, own = (
        load_recipe(write_recipe(tmp_path), ["logging.console=quiet", "checkpoint.every=0"]),
        [],
        EmbeddedEngine._step,
    )

    def failing(self):
        steps.append(1)
        if len(steps) == 170:
            raise EngineError("the device fell off the bus")
        return own(self)

    monkeypatch.setattr(EmbeddedEngine, "_step", failing)
    with pytest.raises(EngineError, match="fell off the bus"):
        train(loaded)
    run = tmp_path / "run"
    reached = read_metrics(run / "metrics.jsonl")[-1]["step"]
    assert 0 < reached < 6
    state = load_tree(run / "checkpoints" / f"step_{reached:06d}", "state")
    assert sum(len(p["token_ids"]) for group in state["collector"]["open"] for p in group["partials"]) > 0
    assert resume(run, []) == 0
    assert_none_lost_or_doubled(run, 6)


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


def test_ctrl_c_finishes_the_step_saves_and_resumes_to_the_same_end(finished, tmp_path):
    whole, _ = finished
    recipe, run = write_recipe(tmp_path), tmp_path / "run"
    slow = ["validation.every=1", "validation.samples=64"]  # evaluation changes no weight, and leaves time to press
    process = subprocess.Popen(
        command("train", recipe, *slow), env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    while process.poll() is None and len(read_metrics(run / "metrics.jsonl")) < 2:
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 130, output
    done = read_metrics(run / "metrics.jsonl")[-1]["step"]
    assert 1 <= done < 6
    assert (run / "checkpoints" / f"step_{done:06d}").is_dir()
    assert f"dapo train --resume {run}" in output
    dapo("train", "--resume", run)
    same(weights(run), weights(whole))


def test_resume_names_what_may_change_and_refuses_what_may_not(finished, tmp_path):
    run, _ = finished
    import shutil

    copy = shutil.copytree(run, tmp_path / "run")
    refused = dapo("train", "--resume", copy, "run.seed=9", expect=2)
    assert "run.seed" in refused.stderr
    assert "fixed" in refused.stderr
    longer = dapo("train", "--resume", copy, "trainer.steps=7")
    assert "trainer.steps: 6 -> 7" in longer.stdout
    assert read_metrics(copy / "metrics.jsonl")[-1]["step"] == 7


def test_a_checkpoint_of_another_model_is_refused_by_its_difference(finished, tmp_path):
    from dapo.models.tiny import make_tiny_model

    run, _ = finished
    recipe = (run / "recipe.resolved.yaml").read_text()
    model = run.parent / "model"
    kept = model.rename(tmp_path / "kept")
    try:
        make_tiny_model(model, "llama", hidden=32, seed=0)
        refused = dapo("train", "--resume", run, "trainer.steps=8", expect=2)
        assert "another model" in refused.stderr
        assert "hidden_size" in refused.stderr
        assert (run / "recipe.resolved.yaml").read_text() == recipe  # a refusal changes nothing
        assert len(read_metrics(run / "metrics.jsonl")) == 7
    finally:
        import shutil

        shutil.rmtree(model)
        kept.rename(model)


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
    evaluated = dapo("evaluate", run, "--samples", "2")
    last = read_metrics(run / "metrics.jsonl")[-1]
    numbers = json.loads(evaluated.stdout[evaluated.stdout.index("{\n") :])
    assert numbers["validation/accuracy"] == last["validation/accuracy"]
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
    assert '"validation/accuracy"' in of_export.stdout
