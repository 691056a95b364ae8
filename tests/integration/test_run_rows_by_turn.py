"""A whole run with a row a turn: a template that takes thinking out of earlier turns."""

from __future__ import annotations

import sys
from copy import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from small_run import assert_every_token_has_a_fate, assert_none_lost_or_doubled, dapo, write_recipe

from dapo.models.load import load_model
from dapo.models.packing import pad
from dapo.models.policy import Policy
from dapo.observe.metrics import read_metrics, without_clock
from dapo.observe.rollouts import read_rollouts
from dapo.observe.tokens import read_tokens
from dapo.types.batch import MODEL, TokenRow

sys.path.append(str(Path(__file__).parents[1] / "unit/data"))
from test_data_templates import tokenizer

TALK = '''
from dapo import Reply


class Talk:
    """Answers as the user and as a tool in turn; the first token of the last turn decides."""

    def step(self, turn):
        if turn.number == 2:
            return Reply(done=True, scores={"accuracy": float(turn.token_ids[0] % 2)})
        role = "tool" if turn.number else "user"
        return Reply([{"role": role, "content": f"{len(turn.token_ids)} tokens"}])
'''
SECTION = "\nenvironment: {kind: 'my_talk:Talk', max_turns: 5, max_turn_tokens: 9, rows: turns}\n"
SETTINGS = (
    "rewards=[{name: accuracy, kind: environment}]",
    "algorithm.reward_scaling.source_max=1.0",
    "algorithm.dynamic_sampling.cap.groups=40",
    "data.thinking.enabled=true",
    "rollout.max_response_tokens=300",
    "logging.tokens=2",
    "validation.every=2",
)


def recipe(folder: Path, **model: int) -> tuple[str, list[str]]:
    """Thinking ends with one letter, so that a model of random weights closes it at times.

    Of earlier turns the template shows what follows the thinking, and the end of one whose thinking was never closed.
    """
    coder = copy(tokenizer("qwen3"))
    given = "{%- set content = message.content -%}"
    shown = "content.split('a')[-1][-4:]"
    rewrites = (
        f"{{%- if message.role == 'assistant' and not loop.last -%}}{{%- set content = {shown} -%}}{{%- endif -%}}"
    )
    coder.chat_template = coder.chat_template.replace(given, given + rewrites)
    path = write_recipe(folder, SECTION, vocabulary=len(coder), **model)
    coder.save_pretrained(folder / "model")
    (folder / "my_talk.py").write_text(TALK)
    return path.name, [f"rollout.stop_token_ids=[{coder.eos_token_id}, 65, 66, 67, 68]", "data.thinking.close='a'"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    name, stops = recipe(folder)
    dapo("train", name, *SETTINGS, *stops, "trainer.steps=3", cwd=folder)
    return folder


@pytest.mark.whole
def test_the_books_balance(whole):
    assert_none_lost_or_doubled(whole / "run", 3)
    rows = [row for row in read_metrics(whole / "run/metrics.jsonl") if row["step"]]
    assert_every_token_has_a_fate(rows)
    assert all(row["environment/turns_mean"] > 2 for row in rows if row["groups/finished"])


@pytest.mark.whole
def test_a_plain_pass_over_each_turn_gives_the_recorded_log_probabilities(whole):
    """Prompts are the recorded ones, and those are what the template writes."""
    assert assert_turns_recomputed(whole) > 200


def assert_turns_recomputed(folder: Path, run: str = "run") -> int:
    """A plain pass with the first weights gives what was recorded of their tokens, in nats; returns how many."""
    coder, table = tokenizer("qwen3"), read_rollouts(folder / run / "rollouts").to_pylist()
    loaded = load_model(folder / "model", attention_mode="padded")
    rewritten = compared = 0
    for row in table:
        if max(row["versions"]) > 0:
            continue
        for turn in (each for each in row["turns"] if each["who"] == MODEL):
            ids = np.array(row["token_ids"][turn["first"] : turn["stop"]])
            with torch.no_grad():
                found, _ = Policy(loaded)(
                    pad([TokenRow(0, np.array(turn["prompt_ids"]), ids)], loaded.device, 0), 1.0, "none"
                )
            recorded = row["logprobs"][turn["first"] : turn["stop"]]
            np.testing.assert_allclose(found.numpy(), recorded, atol=2e-5)
            compared += len(ids)
            before = row["token_ids"][: turn["first"]]
            rewritten += bool(before) and coder.decode(before[:5]) not in coder.decode(turn["prompt_ids"])
    assert rewritten > 5
    return compared


@pytest.mark.whole
def test_the_token_view_joins_the_parts(whole):
    """Learner and sampler agree at the model's tokens; replies have no numbers."""
    seen = 0
    for step in (1, 2):
        rows = {
            (r["group"], r["sample"]): r
            for r in read_rollouts(whole / f"run/rollouts/step_00000{step}.parquet").to_pylist()
        }
        for row in read_tokens(whole / f"run/tokens/step_00000{step}.parquet").to_pylist():
            if row["learner"] is None:
                continue
            own = np.array(row["generated"] or [True] * len(row["sampler"]))
            assert (np.array(row["learner"])[~own] == 0).all()
            assert len(row["learner"]) == rows[row["group"], row["sample"]]["length"] + (~own).sum()
            if step == 1 and set(row["versions"]) == {0}:
                np.testing.assert_allclose(np.array(row["old"])[own], np.array(row["sampler"])[own], atol=1e-5)
                seen += int(own.sum())
    assert seen > 50


@pytest.mark.whole
def test_a_resumed_run_ends_in_the_same_numbers(whole, tmp_path):
    name, stops = recipe(tmp_path)
    dapo("train", name, *SETTINGS, *stops, "trainer.steps=2", cwd=tmp_path)
    dapo("train", "--resume", "run", "trainer.steps=3", cwd=tmp_path)
    ours, theirs = (read_metrics(each / "run/metrics.jsonl")[-1] for each in (tmp_path, whole))
    assert without_clock(ours) == without_clock(theirs)


def test_the_check_shows_the_rows_and_append_is_refused_with_this_move(tmp_path):
    name, stops = recipe(tmp_path)
    said = dapo("check", name, *SETTINGS, *stops, "--verbose", cwd=tmp_path).stdout
    assert "grow with the square of the turns" in said
    assert "3 rows (tokens of prompt + turn): " in said
    append = dapo("check", name, *SETTINGS, *stops, "environment.rows=append", "--verbose", cwd=tmp_path, expect=None)
    assert append.returncode == 2
    assert "rewrites earlier turns" in append.stderr or "in another way" in append.stderr
    assert "`environment.rows: turns`" in append.stderr


@pytest.mark.whole
def test_conversations_are_written_by_turn(whole):
    dapo("rollouts", "run", "--format", "messages", "--out", "said.jsonl", cwd=whole)
    assert '"role": "tool"' in (whole / "said.jsonl").read_text()


@pytest.mark.whole
@pytest.mark.parametrize(("ratio", "tokens", "code"), [("sequence", 4096, 0), ("sequence", 64, 1), ("token", 64, 0)])
def test_a_sequence_ratio_needs_an_episode_in_one_pass(tmp_path, ratio, tokens, code):
    name, stops = recipe(tmp_path)
    sequence = () if ratio == "token" else ("algorithm.clip={low: 3.0e-4, high: 4.0e-4}",)
    more = (f"algorithm.loss.ratio={ratio}", f"learner.microbatch_tokens={tokens}", *sequence)
    done = dapo("train", name, *SETTINGS, *stops, *more, "trainer.steps=1", cwd=tmp_path, expect=None)
    assert (done.returncode != 0) == bool(code), done.stderr[-2000:]
    assert not code or "parts of a response have" in done.stderr


def test_a_model_without_a_chat_template_keeps_every_turn_anyway(tmp_path):
    path = write_recipe(tmp_path, SECTION)
    (tmp_path / "my_talk.py").write_text(TALK)
    done = dapo("check", path.name, SETTINGS[0], cwd=tmp_path, expect=None)
    assert done.returncode != 0
    assert "there is none; use append" in done.stderr + done.stdout


@pytest.mark.cluster
def test_ranks_engines_passes_and_a_reference_take_rows_by_turn(tmp_path):
    name, stops = recipe(tmp_path)
    scale = ("rollout.engines=2", "learner.ranks=2", "learner.epochs_per_rollout=2", "algorithm.old_logprobs=learner")
    dapo("train", name, *SETTINGS, *stops, *scale, "algorithm.kl_coefficient=0.01", "trainer.steps=2", cwd=tmp_path)
    rows = [row for row in read_metrics(tmp_path / "run/metrics.jsonl") if row["step"]]
    assert_every_token_has_a_fate(rows)
    assert all(row["train/optimizer_steps"] == 4 and row["train/skipped_steps"] == 0 for row in rows)
