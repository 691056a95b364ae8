"""Train on a game of several turns: guess a number, hear how far off the guess was, guess again."""

import sys
from pathlib import Path

import dapo
from dapo.models.tiny import make_tiny_model


def guess(prompt, rng, mute=False):
    """Play one episode: two guesses of a number from 1 to 9. ``mute`` is the control: every reply is the same."""
    hidden = 1 + int(prompt.id, 16) % 9
    turn = yield "?"
    for last in (False, True):
        said = turn.text.strip()
        if said == str(hidden):
            return {"accuracy": 1.0}
        if last or not said.isdecimal():
            return {"accuracy": 0.0}
        turn = yield "?" if mute else f"{hidden - int(said):+d}"


def play(name: str, seed: int = 1, steps: int = 80, **args) -> dapo.Run:
    """Train a random model of 40,000 parameters on the game."""
    model = Path("runs/.models/game")
    if not model.exists():
        make_tiny_model(model, "llama", seed=seed)
    return dapo.train(
        {
            "run": {"name": name, "seed": seed},
            "model": {"path": str(model)},
            "data": {
                "train": [{"task": "signed_sum", "seed": 1, "size": 400}],
                "validation": [{"task": "signed_sum", "name": "held_out", "seed": 2, "size": 60}],
            },
            "environment": {"args": args, "max_turns": 2, "max_turn_tokens": 1, "lag": 2},
            "rollout": {"prompts_per_step": 8, "group_size": 16, "max_response_tokens": 12},
            "algorithm": {"overlong_filtering": False, "entropy_coefficient": 0.003},
            "learner": {"learning_rate": 2e-3, "warmup": 2},
            "validation": {"every": 20, "samples": 4},
            "trainer": {"steps": steps},
        },
        environment=guess,
    )


if __name__ == "__main__":
    run = play("example_game", **({"mute": True} if "mute" in sys.argv[1:] else {}))
    print("held-out accuracy:", run.metrics[0]["validation/accuracy"], "->", run.best["validation/accuracy"])
    print("turns in an episode:", run.metrics[-1]["environment/turns_mean"])
