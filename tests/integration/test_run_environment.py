"""Runs with an environment: what trains, what does not, and that kills and slow tools change nothing."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
import warm
from ray_processes import command_of, descendants
from safetensors.numpy import load_file
from small_run import assert_every_token_has_a_fate, assert_none_lost_or_doubled, dapo, write_recipe

from dapo.cli.main import main
from dapo.observe.metrics import read_metrics, without_clock
from dapo.observe.rollouts import read_rollouts
from dapo.types.batch import MODEL

GAME = '''
import os, time

def game(prompt, rng, seconds=0.0, turns=3):
    """Says a number back; the first number of the last turn decides."""
    turn = yield f"+{rng.randrange(1, 10)} ="
    for number in range(turns - 1):
        time.sleep(seconds)
        turn = yield f"-{1 + (len(turn.token_ids) * 7 + number) % 9} ="
    text = turn.text.split()
    return {"accuracy": float(bool(text) and text[0] in "0123456789")}


def known(prompt, rng):
    """Two tries at the answer."""
    turn = yield "?"
    for _ in range(2):
        if turn.text.strip() == prompt.answer:
            return {"accuracy": 1.0}
        turn = yield "+1"
    return {"accuracy": 0.0}


def reads(prompt, rng):
    """Long replies; the model speaks first, so that a group's prompt is one sequence."""
    turn = yield ""
    for _ in range(3):
        turn = yield " ".join(rng.choice("123456789") for _ in range(5)) + " ="
    return {"accuracy": float(bool(turn.text) and turn.text.split()[0] in "0123456789")}


class Counting:
    """Says how often it was asked, and can be restored."""

    def start(self, prompt, seed):
        self.turns = self.last = 0

    def step(self, turn):
        from dapo import Reply
        self.turns, self.last = self.turns + 1, int(turn.token_ids[0])
        return Reply(f"+{self.turns}", reward=0.1 * (len(turn.token_ids) % 2), facts={"asked": self.turns})

    def end(self, why):
        return {"accuracy": float(self.last % 2)}

    def state(self):
        return {"turns": self.turns, "last": self.last}

    def restore(self, state):
        self.turns, self.last = state["turns"], state["last"]
'''
SECTION = """
environment: {{kind: "my_game:game", max_turns: 4, max_turn_tokens: 6, workers: 1, {more}}}
"""
STOPS = "rollout.stop_token_ids=[1, 5, 9]"
QUICK = ("rewards=[{name: accuracy, kind: environment}]", "rollout.max_response_tokens=40", STOPS, "validation.every=6",
         "algorithm.reward_scaling.source_max=1.0", "algorithm.dynamic_sampling.cap.groups=40",
         "algorithm.dynamic_sampling.oversample=3", "rollout.slots=20")  # fmt: skip


def recipe(folder: Path, more: str = "", section: str = SECTION, **model: int) -> Path:
    (folder / "my_game.py").write_text(GAME)
    return write_recipe(folder, section.format(more=more), **model)


def weights(run: Path) -> dict[str, np.ndarray]:
    newest = sorted((run / "checkpoints").iterdir())[-1]
    (file,) = [path for path in newest.rglob("*.safetensors") if "optim" not in path.name][:1]
    return load_file(file)


def train(folder: Path, *overrides: str, more: str = "", **how) -> Path:
    dapo("train", recipe(folder, more).name, *QUICK, *overrides, cwd=folder, **how)
    return folder / "run"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("whole"), "trainer.steps=3")


def test_a_run_with_an_environment_keeps_its_books(whole):
    assert_none_lost_or_doubled(whole, 3)
    rows = [row for row in read_metrics(whole / "metrics.jsonl") if row["step"]]
    assert_every_token_has_a_fate(rows)
    for row in rows:
        assert row["reward/unscored"] == 0
        if row["groups/finished"]:
            assert row["environment/turns_mean"] > 1
            assert row["environment/reply_tokens"] > 0
            assert row["environment/errors"] == 0
    table = read_rollouts(whole / "rollouts").to_pylist()
    assert any(len(row["turns"]) > 4 for row in table)
    for row in table:
        assert row["length"] == sum(row["generated"] or [True] * len(row["token_ids"]))
        assert [turn["who"] == MODEL for turn in row["turns"]] == [n % 2 == 1 for n in range(len(row["turns"]))]
        assert "[user]" in row["response"]
        for turn in row["turns"]:
            assert set(row["generated"][turn["first"] : turn["stop"]]) == {turn["who"] == MODEL}
    finished = sum(row["sampling/generated_tokens"] for row in rows)
    assert finished == rows[-1]["counters/generated_tokens"]


def test_the_check_plays_an_episode_and_one_of_gold_answers(tmp_path):
    (tmp_path / "sums.jsonl").write_text('{"problem": "1 +2 =", "answer": "=3"}\n')
    path = recipe(tmp_path, section=SECTION.replace("my_game:game", "my_game:known"))
    said = dapo("check", path.name, *QUICK, "data.train=[{path: sums.jsonl}]", cwd=tmp_path).stdout
    shown = [line.strip() for line in said.partition("one episode, with canned turns\n")[2].splitlines()][:11]
    assert shown == [
        "[user] '?': 1 tokens, not trained",
        "[assistant] '1 +2 =': 4 tokens, trained",
        "[user] '+1': 1 tokens, not trained",
        "[assistant] '=3': 2 tokens, trained",
        "the environment ended it; scores: accuracy 1",
        "with the gold answer '=3' in every turn:",
        "[user] '?': 1 tokens, not trained",
        "[assistant] '=3': 2 tokens, trained",
        "the environment ended it; scores: accuracy 1",
        "no chat template: replies are appended as raw text",
        "",
    ]
    (tmp_path / "sums.jsonl").write_text('{"problem": "1 +2 =", "answer": "three"}\n')
    said = dapo("check", path.name, *QUICK, "data.train=[{path: sums.jsonl}]", cwd=tmp_path).stdout
    assert "no episode with the gold answer 'three': the tokenizer does not give it back as it is" in said


@pytest.mark.whole
def test_the_speed_of_a_tool_changes_no_bit(whole, tmp_path):
    slow = train(tmp_path, "trainer.steps=3", more="args: {seconds: 0.003}")
    ours, theirs = weights(slow), weights(whole)
    assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.slow
def test_a_slow_tool_changes_no_bit(whole, tmp_path):
    many = ("environment.workers=8", "validation.every=0", "trainer.steps=3")
    slow = train(tmp_path, *many, more="args: {seconds: 0.1}")
    ours, theirs = weights(slow), weights(whole)
    assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.whole
def test_a_run_prefills_prompts_and_replies_and_nothing_twice(tmp_path):
    """Where no episode is carried into the next step; of one that is, all is computed again."""
    path = recipe(tmp_path, section=SECTION.replace("my_game:game", "my_game:reads"))
    free = [option for option in QUICK if "oversample" not in option]
    free += ["rollout.max_response_tokens=80", "algorithm.dynamic_sampling.mode=off", "trainer.steps=2"]
    dapo("train", path.name, *free, cwd=tmp_path)
    rows = [row for row in read_metrics(tmp_path / "run" / "metrics.jsonl") if row["step"]]
    table = read_rollouts(tmp_path / "run" / "rollouts").to_pylist()
    for row in rows:
        own = [response for response in table if response["step"] == row["step"]]
        prompts = sum(len(response["prompt"].split()) for response in own if response["sample"] == 0)
        replies = [turn for response in own for turn in response["turns"] if turn["who"] != MODEL]
        count = sum(turn["stop"] - turn["first"] for turn in replies)
        assert count > 200
        assert row["environment/given_tokens"] == prompts + count
        assert 0.95 < row["sampling/prefill_tokens"] / (prompts + count) < 1.1
        assert row["environment/prefill_ratio"] == row["sampling/prefill_tokens"] / (prompts + count)


@pytest.mark.whole
def test_a_run_that_is_stopped_and_resumed_goes_on_to_the_same_bits(whole, tmp_path):
    """Carried episodes are in their middle, and are played again in a new process."""
    run = train(tmp_path, "trainer.steps=2")
    held = read_metrics(run / "metrics.jsonl")[-1]["groups/unfinished"]
    dapo("train", "--resume", "run", "trainer.steps=3", cwd=tmp_path)
    ours, theirs = weights(run), weights(whole)
    assert held > 0
    assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)


def train_in(folder: Path, arguments: list[str]) -> int:
    """Run the command line in a folder: in a process that is to be killed."""
    os.chdir(folder)
    return main(arguments)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_twenty_kills_at_random_moments_change_no_bit(tmp_path, tmp_path_factory):
    """The driver is killed wherever it is, also while a tool works; before every third kill its worker is."""
    slow = "args: {seconds: 0.01}"
    many = ("trainer.steps=24", "checkpoint.every=1", "algorithm.dynamic_sampling.cap.then=train_partial")
    whole = train(tmp_path_factory.mktemp("slow"), *many, more=slow)
    chance, run, kills = random.Random(5), tmp_path / "run", 0
    arguments = ["train", recipe(tmp_path, slow).name, *QUICK, *many]
    while kills < 20:
        process = warm.start(train_in, tmp_path, arguments)
        seen = len(read_metrics(run / "metrics.jsonl"))
        while process.is_alive() and len(read_metrics(run / "metrics.jsonl")) <= seen:
            time.sleep(0.01)
        time.sleep(chance.random() * 0.3)
        if kills % 3 == 0:
            kill_workers(process.pid)
            time.sleep(chance.random() * 0.3)
        assert process.is_alive()
        process.kill()
        process.join()
        kills += 1
        arguments = ["train", "--resume", str(run)]
    dapo("train", "--resume", str(run), cwd=tmp_path)
    assert_none_lost_or_doubled(run, 24)
    rows, expected = (read_metrics(folder / "metrics.jsonl") for folder in (run, whole))
    assert sum(row["environment/replayed"] for row in rows if row["step"]) > 0
    assert list(map(repeated, rows)) == list(map(repeated, expected))
    ours, theirs = weights(run), weights(whole)
    assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)


def kill_workers(driver: int) -> None:
    """Kill the processes that play environments for a driver, and leave their guards alone."""
    for process in descendants(driver):
        command = command_of(process)
        if "dapo.environments.worker" in command and "guard.py" not in command:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


def repeated(row: dict[str, float]) -> dict[str, float]:
    """Return what a kill does not change: all but the clock and the turns that were played again."""
    return {key: value for key, value in without_clock(row).items() if key != "environment/replayed"}


@pytest.mark.whole
def test_an_environment_with_a_state_is_restored(tmp_path):
    section = SECTION.replace("my_game:game", "my_game:Counting")
    path = recipe(tmp_path, section=section)
    quick = [*QUICK, "rewards.0.weight=1", "rewards.1={name: steps, kind: environment, weight: 0}"]
    dapo("train", path.name, *quick, "trainer.steps=2", cwd=tmp_path)
    dapo("train", "--resume", "run", "trainer.steps=3", cwd=tmp_path)
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert rows[-1]["environment/replayed"] == 0
    judged = [row for row in rows if row.get("groups/finished")]
    assert all(row["environment/fact/asked"] >= 1 for row in judged)
    assert all("reward/steps" in row for row in judged)
    assert judged
    first = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[1])
    assert first["environment/not_repeatable"] == 0


@contextmanager
def playing(folder: Path, *overrides: str, count: int = 12, **model: int):
    """A session with groups of episodes that were sampled with the learner's weights: it, the learner, the groups."""
    with playing_recipe(recipe(folder, "args: {turns: 4}", **model), *QUICK, *overrides, count=count) as found:
        yield found


@contextmanager
def playing_recipe(path: Path, *overrides: str, count: int):
    """As ``playing``, with a recipe in the folder of its environment."""
    from dapo.cli.check_try import _generate
    from dapo.config.load import load_recipe
    from dapo.observe.console import Console
    from dapo.run.reinforcement import reward_session

    with pytest.MonkeyPatch.context() as patch, Console("quiet") as console:
        patch.chdir(path.parent)
        session = reward_session(load_recipe(path, list(overrides)).recipe, console)
        try:
            learner = session.learner()
            session.parts.engine.load(learner.publish(0))
            yield session, learner, _generate(session, count)
        finally:
            session.close()


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("played")
    with playing(folder) as (session, learner, groups):
        saved = folder / "saved"
        saved.mkdir()
        learner.save(saved).result()
        assert session.parts.engine.stats()["prefill_tokens"] > 0
        assert len(session.parts.engine.kept) == 0
        yield session, learner, groups, saved


def assert_recomputed(learner, groups, most: float = 1e-5, fewest: int = 200) -> None:
    """A plain forward pass gives the engine's log-probabilities of all model tokens, in nats."""
    from dapo.types.batch import TokenRow

    made = [(group, one) for group in groups for one in group.completions_G]
    rows = [TokenRow(group.id, group.prompt.token_ids.astype(np.int32), one.token_ids.astype(np.int32))
            for group, one in made]  # fmt: skip
    again = learner.logprobs(rows).result()
    own = [np.ones(len(one.token_ids), bool) if one.generated is None else one.generated for _, one in made]
    gaps = [np.abs(new - one.logprobs)[mask] for (_, one), new, mask in zip(made, again, own, strict=True)]
    tokens, replies = sum(map(len, gaps)), sum(int((~mask).sum()) for mask in own)
    assert tokens > 500
    assert replies > fewest
    assert max(gap.max() for gap in gaps) < most


def test_a_plain_forward_pass_gives_the_log_probabilities_of_all_model_tokens(played):
    _, learner, groups, _ = played
    assert_recomputed(learner, groups)


def test_what_stands_at_reply_tokens_changes_no_bit_of_the_weights(played):
    """Nor any metric of the step. Nonsense in their place does nothing; at a single model token it does."""
    import dataclasses

    from dapo.run.algorithm import make_algorithm
    from dapo.types.batch import StepBatch
    from dapo.types.enums import Disposition

    session, learner, groups, saved = played

    metrics = []

    def learned(change) -> dict[str, np.ndarray]:
        learner.load(saved)
        altered = []
        for group in groups:
            made = [change(group.id, n, one) for n, one in enumerate(group.completions_G)]
            altered.append(dataclasses.replace(group, completions_G=made, disposition=Disposition.TRAINED))
        batch = StepBatch(0, altered, altered)
        algorithm = make_algorithm(session.recipe)
        done = learner.learn(algorithm.plan(batch, {}, version=0, rate=lambda number: 1e-2)).result()
        metrics.append((without_clock(batch.metrics), {key: str(stat) for key, stat in done.stats.items()}))
        return {name: value.detach().numpy().copy() for name, value in session.loaded.model.named_parameters()}

    def nonsense(group, n, one, where):
        logprobs, versions = one.logprobs.copy(), one.versions.copy()
        logprobs[where], versions[where] = -17.0, 99
        return dataclasses.replace(one, logprobs=logprobs, versions=versions)

    plain = learned(lambda group, n, one: one)
    replies = learned(lambda group, n, one: nonsense(group, n, one, ~one.generated))
    mixed = next(g for g in groups if len(set(g.accuracies())) > 1)
    first = np.flatnonzero(mixed.completions_G[0].generated)[:1]
    single = learned(lambda group, n, one: nonsense(group, n, one, first) if (group, n) == (mixed.id, 0) else one)
    assert all(np.array_equal(plain[name], replies[name]) for name in plain)
    assert not all(np.array_equal(plain[name], single[name]) for name in plain)
    assert metrics[0] == metrics[1]
    assert metrics[0] != metrics[2]
