"""Train with an environment that keeps a state: it is saved with each reply, and a resume goes on from there."""

from pathlib import Path

import dapo
from dapo.models.tiny import make_tiny_model


class Stairs:
    """Climb from 1 to 4: each turn names the next step, and a wrong one ends the climb."""

    def start(self, prompt, seed):
        """Begin on the first step."""
        self.step_now = 1
        return dapo.Reply("1")

    def step(self, turn):
        """Go up if the model named the next step."""
        if turn.text.strip() != str(self.step_now + 1):
            return dapo.Reply(done=True, scores={"accuracy": 0.0, "height": self.step_now})
        self.step_now += 1
        if self.step_now == 4:
            return dapo.Reply(done=True, scores={"accuracy": 1.0, "height": 4})
        return dapo.Reply(str(self.step_now), facts={"height": self.step_now})

    def end(self, why):
        """Score a climb that a limit ended."""
        return {"accuracy": 0.0, "height": self.step_now}

    def close(self):
        """Let go of nothing."""

    def state(self):
        """Return what a checkpoint keeps of an episode in its middle."""
        return {"step_now": self.step_now}

    def restore(self, state):
        """Go on from there in another process."""
        self.step_now = state["step_now"]


if __name__ == "__main__":
    model = Path("runs/.models/stairs")
    if not model.exists():
        make_tiny_model(model, "llama", seed=1)
    run = dapo.train(
        {
            "run": {"name": "example_stairs"},
            "model": {"path": str(model)},
            "data": {"train": [{"task": "signed_sum", "seed": 1, "size": 200}]},
            "environment": {"max_turns": 4, "max_turn_tokens": 1},
            "rewards": [
                {"name": "accuracy", "kind": "environment", "weight": 0.0},
                {"name": "height", "kind": "environment", "weight": 0.25},
            ],
            "rollout": {"prompts_per_step": 4, "group_size": 16, "max_response_tokens": 12},
            "algorithm": {"overlong_filtering": False, "dynamic_sampling": {"metric": "height"}},
            "learner": {"learning_rate": 5e-3, "warmup": 2},
            "validation": {"every": 0},
            "trainer": {"steps": 20},
        },
        environment=Stairs,
    )
    print("height:", run.metrics[0]["reward/height"], "->", run.metrics[-1]["reward/height"])
