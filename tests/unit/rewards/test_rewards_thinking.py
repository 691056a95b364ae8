"""Nothing within the thinking is an answer, whichever verifier reads it."""

from __future__ import annotations

import numpy as np
import pytest

from dapo.config.schema import Reward
from dapo.rewards.compose import build_scorer
from dapo.types.batch import Key, Prompt, Response
from dapo.types.enums import FinishReason

NONE = np.zeros(0)
PROMPT = Prompt("", "", NONE, "", "5", "here", {"task": "signed_sum"})


def both(prompt, completion):
    return float(completion.final_text == "=7" and "=5" in completion.text)


def scores(reward, *responses):
    """The accuracies of (text, answer) each."""
    scorer, found = build_scorer([reward], tasks={"signed_sum"}), {}
    try:
        for number, (text, answer) in enumerate(responses):
            made = Response(NONE, NONE, NONE, FinishReason.STOP, text, answer=answer)
            scorer.submit(Key("train", 0, number), PROMPT, made)
        while len(found) < len(responses):
            found.update(scorer.poll(None))
    finally:
        scorer.close()
    assert all(score.reason is None for score in found.values())
    return [found["train", 0, number].values["accuracy"] for number in range(len(responses))]


@pytest.mark.parametrize(
    ("reward", "right", "wrong"),
    [
        ({"kind": "math"}, "\\boxed{5}", "\\boxed{7}"),
        ({"kind": "exact"}, "5", "7"),
        ({"kind": "exact", "pattern": "=(\\d)"}, "=5", "=7"),
        ({"kind": "regex", "pattern": "=5"}, "=5", "=7"),
        ({"kind": "task"}, "=5", "=7"),
    ],
)
def test_verifiers_read_the_answer_alone(reward, right, wrong):
    made = Reward(**reward)
    assert scores(
        made,
        (f"<think>{wrong}</think>{right}", right),
        (f"<think>{right}</think>{wrong}", wrong),
        (f"<think>{right}", ""),  # never closed
        (right, None),  # nobody looked for thinking
    ) == [1.0, 0.0, 0.0, 1.0]


def test_a_pattern_may_look_at_the_whole_response_and_a_function_sees_both():
    tags = Reward(kind="regex", pattern="^<think>.*</think>", reads="response")
    assert scores(tags, ("<think>a</think>b", "b"), ("b", "b")) == [1.0, 0.0]
    own = Reward(kind="function", function="test_rewards_thinking:both")
    assert scores(own, ("<think>=5</think>=7", "=7")) == [1.0]
