"""Whole runs with an agent: its rows, its account, its resume, and tools through a chat template."""

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
from dapo.types.batch import MODEL, TokenRow

sys.path.append(str(Path(__file__).parents[1] / "unit/data"))
sys.path.append(str(Path(__file__).parents[1] / "unit/environments"))
from test_data_templates import tokenizer
from test_environments_speech import HERMES

AGENT = '''
import json, urllib.request


def ask(base_url, api_key, messages, **more):
    body = json.dumps({"messages": messages, **more}).encode()
    head = {"Authorization": f"Bearer {api_key}"}
    with urllib.request.urlopen(urllib.request.Request(f"{base_url}/chat/completions", body, head)) as answer:
        return json.loads(answer.read())["choices"][0]["message"]


def user(text):
    return {"role": "user", "content": text}


def solve(prompt, *, base_url, api_key):
    """Goes on once, and then forgets everything; the first number of its last turn decides."""
    where, messages = (base_url, api_key), [user(prompt.problem)]
    said = ask(*where, messages)
    ask(*where, [*messages, said, user(f"+{1 + len(said['content']) % 9} =")])
    text = ask(*where, [user("1 +2 =")])["content"].split()
    return float(bool(text) and text[0] in "0123456789")


def adds(prompt, *, base_url, api_key):
    """Runs the tools that the model calls."""
    tools = [{"type": "function", "function": {"name": "add", "description": "Add.", "parameters": {}}}]
    messages = [user(prompt.problem)]
    for _ in range(2):
        said = ask(base_url, api_key, messages, tools=tools)
        if not said.get("tool_calls"):
            return 0.0
        (call,) = said["tool_calls"]
        total = sum(json.loads(call["function"]["arguments"]).values())
        messages += [said, {"role": "tool", "tool_call_id": call["id"], "content": str(total)}]
    return 1.0
'''
SECTION = "\nenvironment: {kind: agent, run: 'my_agent:solve', max_turns: 4, max_turn_tokens: 6, workers: 1}\n"
QUICK = ("rewards=[{name: accuracy, kind: environment}]", "rollout.max_response_tokens=40", "validation.every=3",
         "rollout.stop_token_ids=[1, 5, 9]", "algorithm.reward_scaling.source_max=1.0", "data.max_prompt_tokens=64",
         "algorithm.dynamic_sampling.cap.groups=40", "rollout.slots=20")  # fmt: skip


def recipe(folder: Path, **model: int) -> str:
    (folder / "my_agent.py").write_text(AGENT)
    return write_recipe(folder, SECTION, **model).name


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    done = dapo("train", recipe(folder), *QUICK, "trainer.steps=3", cwd=folder)
    assert "repeats itself only if the agent does" in done.stdout + done.stderr
    return folder


@pytest.mark.whole
def test_the_books_balance(whole):
    assert_none_lost_or_doubled(whole / "run", 3)
    rows = [row for row in read_metrics(whole / "run/metrics.jsonl") if row["step"]]
    assert_every_token_has_a_fate(rows)
    assert all(row["reward/unscored"] == 0 for row in rows)


@pytest.mark.whole
def test_a_plain_pass_over_each_row_gives_the_recorded_log_probabilities(whole):
    """The second request goes on with the row of the first; the third begins another."""
    for row in read_rollouts(whole / "run/rollouts").to_pylist():
        own = sum(turn["who"] == MODEL for turn in row["turns"])
        begins = [turn["prompt_ids"] is not None for turn in row["turns"] if turn["who"] != MODEL]
        assert begins == [True, False, True][:own]
    assert assert_rows_recomputed(whole) > 100


def assert_rows_recomputed(folder: Path, run: str = "run") -> int:
    """A plain pass with the first weights gives what was recorded of their tokens, in nats; returns how many."""
    loaded, compared = load_model(folder / "model", attention_mode="padded"), 0
    for row in read_rollouts(folder / run / "rollouts").to_pylist():
        if max(row["versions"]) > 0:
            continue
        starts = [turn for turn in row["turns"] if turn["prompt_ids"] is not None]
        prompts = [turn["prompt_ids"] for turn in starts] or [loaded.tokenizer.encode(row["prompt"])]
        firsts = [turn["stop"] for turn in starts] or [0]
        ends = [*(turn["first"] for turn in starts[1:]), len(row["token_ids"])]
        for prompt_ids, first, stop in zip(prompts, firsts, ends, strict=True):
            part = slice(first, stop)
            ids = np.array(row["token_ids"][part])
            with torch.no_grad():
                asked = pad([TokenRow(0, np.array(prompt_ids), ids)], loaded.device, 0)
                found, _ = Policy(loaded)(asked, 1.0, "none")
            mask = np.array((row["generated"] or [True] * len(row["token_ids"]))[part])
            np.testing.assert_allclose(found.numpy()[mask], np.array(row["logprobs"][part])[mask], atol=2e-5)
            compared += int(mask.sum())
    return compared


@pytest.mark.whole
def test_a_resumed_run_of_an_agent_that_repeats_itself_ends_in_the_same_numbers(whole, tmp_path):
    dapo("train", recipe(tmp_path), *QUICK, "trainer.steps=2", cwd=tmp_path)
    assert read_metrics(tmp_path / "run/metrics.jsonl")[-1]["groups/unfinished"] > 0
    dapo("train", "--resume", "run", "trainer.steps=3", cwd=tmp_path)
    ours, theirs = (read_metrics(each / "run/metrics.jsonl")[-1] for each in (tmp_path, whole))
    different = {"environment/replayed"}
    same = [{k: v for k, v in without_clock(each).items() if k not in different} for each in (ours, theirs)]
    assert same[0] == same[1]


@pytest.mark.parametrize("rows", ["append", "turns"])
def test_tools_are_read_in_turns_and_their_results_follow_in_the_row(tmp_path, rows):
    coder = copy(tokenizer("chatml"))
    coder.chat_template = HERMES
    (tmp_path / "my_agent.py").write_text(AGENT)
    path = write_recipe(tmp_path, SECTION.replace(":solve", ":adds").replace("6,", "200,"), vocabulary=len(coder))
    coder.save_pretrained(tmp_path / "model")
    call = '<tool_call>{\\"name\\": \\"add\\", \\"arguments\\": {\\"a\\": 1, \\"b\\": 2}}</tool_call>'
    (tmp_path / "sums.jsonl").write_text(f'{{"problem": "Add 1 and 2.", "answer": "{call}"}}\n')
    more = (f"rollout.stop_token_ids=[{coder.eos_token_id}]", "rollout.max_response_tokens=600", "data.validation=[]")
    own = ("data.train=[{path: sums.jsonl}]", "validation.every=0", f"environment.rows={rows}")
    done = dapo("check", path.name, QUICK[0], *more, *own, "--verbose", cwd=tmp_path)
    gold = done.stdout.partition("with the gold answer")[2]
    assert "the environment ended it; scores: accuracy 1" in gold
    assert "[tool] '3'" in gold
    assert f"{1 if rows == 'append' else 2} row" in gold


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("environment.run=null", "kind: agent needs a function"),
        ("environment.kind='my_agent:solve'", "is only read with environment.kind: agent"),
        ("environment.tools=['my_agent:ask']", "calls its own tools"),
        ("environment.on_error=tell", "an agent that failed is over"),
        ("environment.args={speed: 2}", "is called as (prompt, base_url=..., api_key=..., **environment.args)"),
    ],
)
def test_contradictions_are_refused_before_anything_starts(tmp_path, override, said):
    done = dapo("check", recipe(tmp_path), *QUICK, override, cwd=tmp_path, expect=None)
    assert done.returncode != 0
    assert said in " ".join((done.stdout + done.stderr).split())
