"""A whole run of a chat model with an environment: its rows are what the chat template writes of the conversation."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from small_run import assert_every_token_has_a_fate, dapo, write_recipe

from dapo.observe.metrics import read_metrics
from dapo.observe.rollouts import read_rollouts
from dapo.types.batch import MODEL

sys.path.append(str(Path(__file__).parents[1] / "unit/data"))
from test_data_templates import tokenizer

TALK = '''
from dapo import Reply


class Talk:
    """Speaks first, answers as the user and as a tool in turn, and has a last word."""

    def start(self, prompt, seed):
        return Reply("Begin.") if seed % 2 else None

    def step(self, turn):
        if turn.number == 2:
            return Reply("Good bye.", done=True, scores={"accuracy": float(turn.token_ids[0] % 2)})
        role = "tool" if turn.number else "user"
        return Reply([{"role": role, "content": f"{len(turn.token_ids)} tokens"}])
'''
RECIPE = (
    "environment={kind: 'my_talk:Talk', max_turns: 5, max_turn_tokens: 9}",
    "rewards=[{name: accuracy, kind: environment}]",
    "algorithm.reward_scaling.source_max=1.0",
    "algorithm.dynamic_sampling.cap={groups: 2, then: train_partial}",
    "trainer.steps=1",
    "validation.every=0",
)


@pytest.mark.whole
@pytest.mark.parametrize("name", ["qwen2.5", "llama3.2"])
def test_rows_are_what_the_template_writes_of_the_conversation(tmp_path, name):
    """What the model wrote is replaced by a word, as its bytes are no text."""
    coder = tokenizer(name)
    path = write_recipe(tmp_path, vocabulary=len(coder))
    coder.save_pretrained(tmp_path / "model")
    (tmp_path / "my_talk.py").write_text(TALK)
    end, kwargs = coder.eos_token_id, {"date_string": "26 Jul 2024"} if name == "llama3.2" else {}
    limits = ("rollout.max_response_tokens=300", f"rollout.stop_token_ids=[{end}, 65, 66, 67, 68]")
    data = f"data.chat_template_kwargs={kwargs}" if kwargs else "data.shuffle=true"
    dapo("train", path.name, *RECIPE, *limits, data, cwd=tmp_path)
    assert_every_token_has_a_fate([row for row in read_metrics(tmp_path / "run/metrics.jsonl") if row["step"]])
    rows, openings = read_rollouts(tmp_path / "run/rollouts").to_pylist(), set()
    assert rows
    for row in rows:
        assert row["ended"] == "done"
        text, messages = row["prompt"], [{"role": "user", "content": problem_of(row, tmp_path)}]
        for number, turn in enumerate(row["turns"]):
            ids = row["token_ids"][turn["first"] : turn["stop"]]
            if turn["who"] == MODEL:
                closed = ids[-1] == end
                text += f"said {number}" + coder.eos_token * closed
                messages.append({"role": "assistant", "content": f"said {number}"})
            else:
                text += coder.decode(ids)
                messages += [{"role": turn["who"], "content": turn["text"]}] if turn["text"] else []
        openings.add(row["turns"][0]["text"])
        whole = coder.apply_chat_template(messages, tokenize=False, **kwargs)
        assert text == whole
    assert openings == {"Begin.", ""}


def problem_of(row, folder):
    from dapo.observe.prompts import read_prompts

    table = read_prompts(folder / "run/prompts.parquet")
    return dict(zip(table["id"].to_pylist(), table["problem"].to_pylist(), strict=True))[row["prompt_id"]]
