"""What ``learner.router_replay`` asks of the rest of a recipe."""

from __future__ import annotations

import pytest
from each import each

from dapo.config import recipe_from_dict
from dapo.errors import RecipeError

BASE = {"model": {"path": "a/b"}, "data": {"train": [{"task": "signed_sum"}]}}
AGENT = {"kind": "agent", "run": "my_agent:solve"}
TURNS = {"kind": "my_game:guess", "rows": "turns"}
LEARNER = {"old_logprobs": "learner"}
ROWS_MOVE = {"ranks": 2, "epochs_per_rollout": 2, "minibatch_prompts": 2}


def recipe(replay, *, algorithm=None, rollout=None, learner=None, **sections):
    given = {"learner": {"router_replay": replay} | (learner or {}), "algorithm": algorithm or {}}
    return recipe_from_dict(BASE | given | {"rollout": {"prompts_per_step": 4} | (rollout or {})} | sections)


@pytest.mark.parametrize(("replay", "options", "said"), [
    ("learner", {"algorithm": {"old_logprobs": "sampler"}}, "set algorithm.old_logprobs: learner, or .*: sampler"),
    ("learner", {"algorithm": LEARNER, "learner": ROWS_MOVE}, "set learner.minibatch_prompts: null"),
    ("sampler", {"rollout": {"engine": "generate"}}, "generate does not give; set rollout.engine to embedded or vllm"),
    ("sampler", {"environment": AGENT}, "with environment.kind: agent a response has several prompts; use learner or"),
    ("sampler", {"environment": TURNS}, "with environment.rows: turns a response has several prompts; use learner or"),
])  # fmt: skip
def test_refusals_name_the_next_move(replay, options, said):
    with pytest.raises(RecipeError, match=said) as caught:
        recipe(replay, **options)
    assert "learner.router_replay" in str(caught.value)


@each(("replay", "options"), [
    ("off", {"rollout": {"engine": "generate"}}),
    ("learner", {"algorithm": {"old_logprobs": "learner"}}),
    ("learner", {"algorithm": {"old_logprobs": "learner"}, "learner": ROWS_MOVE | {"ranks": 1}}),
    ("sampler", {}),
    ("sampler", {"environment": TURNS | {"rows": "append"}}),
    ("sampler", {"rollout": {"engine": "vllm"}}),
])  # fmt: skip
def test_what_is_allowed(replay, options):
    assert recipe(replay, **options).recipe.learner.router_replay == replay
