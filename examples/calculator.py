"""Train with a tool: a typed function is its own schema. A random model learns to call it."""

import re
from pathlib import Path

import dapo
from dapo.models.tiny import make_tiny_model


def total(terms: str) -> str:
    """Add up signed numbers, such as "3 -1 +2"."""
    return f"={max(0, min(45, sum(int(term) for term in terms.split())))}"


def read_calls(text):
    """Read the calls of a turn: "?" and the terms that follow, up to "="."""
    found = re.search(r"\?\s*([1-9](?:\s[+-][1-9])*)\s*=", text)
    return [("total", {"terms": found.group(1)})] if found else []


def called(prompt, completion):
    """Reward an episode in which the tool was called and the model spoke after its result."""
    return any(turn.calls for turn in completion.turns) and completion.turns[-1].who == "assistant"


if __name__ == "__main__":
    model = Path("runs/.models/calculator")
    if not model.exists():
        make_tiny_model(model, "llama", seed=1)
    run = dapo.train(
        {
            "run": {"name": "example_calculator"},
            "model": {"path": str(model)},
            "data": {"train": [{"task": "signed_sum", "seed": 1, "size": 200, "options": {"max_terms": 4}}]},
            "environment": {"tool_format": read_calls, "max_turns": 3, "max_turn_tokens": 6},
            "rollout": {"prompts_per_step": 4, "group_size": 8, "max_response_tokens": 24},
            "algorithm": {"overlong_filtering": False},
            "learner": {"learning_rate": 5e-3, "warmup": 2},
            "validation": {"every": 0},
            "trainer": {"steps": 20},
        },
        tools=[total],
        rewards=[called],
    )
    rates = [step["reward/accuracy"] for step in run.metrics if step.get("reward/accuracy") is not None]
    print(f"episodes that call the tool: {rates[0]:.0%} -> {rates[-1]:.0%}")
