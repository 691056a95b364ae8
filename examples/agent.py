"""Train an agent that is written with the ``openai`` package: two tries at a sum, with a hint between them."""

import sys
from functools import cache

from openai import AsyncOpenAI

import dapo


@cache
def client(base_url):
    """Return one client for all episodes of a process: they share its connections."""
    return AsyncOpenAI(base_url=base_url, api_key="each episode has its own", timeout=3600)


async def solve(prompt, *, base_url, api_key, mute=False):
    """Play one episode. ``mute`` is the control: the hint is always the same."""
    model, hidden = client(base_url).with_options(api_key=api_key), int(prompt.answer)
    messages = [{"role": "user", "content": prompt.problem}]
    answer = await model.chat.completions.create(model="policy", messages=messages)
    said = answer.choices[0].message.content
    total = said.rpartition("=")[2].strip()
    if total == str(hidden) or not total.isdecimal() or abs(hidden - int(total)) > 9:
        return float(total == str(hidden))
    hint = "+1" if mute else f"{hidden - int(total):+d}"
    messages += [{"role": "assistant", "content": said}, {"role": "user", "content": hint}]
    answer = await model.chat.completions.create(model="policy", messages=messages)
    return float(answer.choices[0].message.content.rpartition("=")[2].strip() == str(hidden))


SHORT = {"max_turn_tokens": 2}  # a step of a sum, or its total


def play(name: str, seed: int = 1, steps: int = 20, settings=None, **args) -> dapo.Run:
    """Train the built-in model on the game. ``settings`` change the recipe, by dotted keys."""
    options = {"max_terms": 4}
    return dapo.train(
        {
            "run": {"name": name, "seed": seed},
            "model": {"path": "builtin/signed-sum"},
            "data": {
                "train": [{"task": "signed_sum", "seed": 1, "size": 4000, "options": options}],
                "validation": [{"task": "signed_sum", "name": "held_out", "seed": 2, "size": 64, "options": options}],
            },
            "environment": {"kind": "agent", "run": "examples.agent:solve", "args": args, "max_turns": 2, **SHORT},
            "rewards": [{"name": "accuracy", "kind": "environment"}],
            "rollout": {"prompts_per_step": 8, "group_size": 16, "max_response_tokens": 16},
            "learner": {"learning_rate": 1e-3, "minibatch_prompts": 4},
            "validation": {"every": 10, "samples": 4},
            "trainer": {"steps": steps},
        },
        **(settings or {}),
    )


if __name__ == "__main__":
    run = play("example_agent", **({"mute": True} if "mute" in sys.argv[1:] else {}))
    print("held-out accuracy:", run.metrics[0]["validation/accuracy"], "->", run.best["validation/accuracy"])
    print("turns in an episode:", run.metrics[-1]["environment/turns_mean"])
