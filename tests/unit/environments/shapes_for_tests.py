"""Environments as the documentation of SkyRL-Gym and TRL asks for them, and classes that no shape fits."""

from __future__ import annotations

import re


class Product:
    """SkyRL-Gym's shape: several tries at a boxed answer, as its page on new environments describes."""

    def __init__(self, env_config=None, extras=None):
        assert "ground_truth" in extras["reward_spec"]
        self.answer = extras["reward_spec"]["ground_truth"]
        self.most, self.turns, self.hint = extras["max_turns"], 0, env_config.hint
        self.closed = False

    def init(self, prompt):
        return prompt, {}

    def step(self, action):
        self.turns += 1
        found = re.search(r"\\boxed\{([^}]+)\}", action)
        said = found.group(1) if found else None
        right = said == self.answer
        if right or self.turns >= self.most:
            told = {"parsed_answer": said, "boxed": said is not None}
            return {"observations": [], "reward": float(right), "done": True, "metadata": told}
        observations = [{"role": "user", "content": self.hint if said is None else f"'{said}' is wrong"}]
        return {"observations": observations, "reward": 0.1, "done": False, "metadata": {}}

    def close(self):
        self.closed = True

    def get_metrics(self):
        return {"turns": self.turns, "name": "product"}


class Opening(Product):
    def init(self, prompt):
        return [*prompt, {"role": "user", "content": "Begin."}], {"opened": True}


class Rewritten(Product):
    def init(self, prompt):
        return [{"role": "user", "content": prompt[0]["content"] + " Box it."}], {}


class Replaced(Product):
    def step(self, action):
        return {"observations": [], "reward": 1.0, "done": True, "metadata": {}, "postprocessed_action": action[:1]}


class Word:
    """TRL's shape: a hidden word, guessed by a tool."""

    def __init__(self):
        self.reward, self.over = 0.0, False

    def reset(self, **columns) -> str | None:
        self.hidden = columns["answer"]
        self.level = columns["level"]
        return f"{len(self.hidden)} letters, {columns['prompt'][-1]['content']}"

    def guess(self, word: str) -> str:
        """Guess the word.

        Args:
            word: of lower-case letters.

        Returns:
            The places of right letters.
        """
        if self.over:
            raise ValueError("Game over.")
        self.over = word == self.hidden
        self.reward = float(self.over)
        return "".join("G" if a == b else "X" for a, b in zip(word, self.hidden, strict=False))

    def _private(self):
        raise AssertionError

    def get_reward(self) -> float:
        return self.reward


class Unjudged:
    def reset(self):
        return None

    def look(self) -> str:
        return "nothing"


class BothGyms:
    def init(self, prompt):
        return prompt, {}

    def reset(self):
        pass

    def step(self, action):
        pass


class OursAndTheirs:
    def start(self, prompt, seed):
        pass

    def init(self, prompt):
        return prompt, {}

    def step(self, action):
        pass


class Gymnasium:
    def reset(self, seed=None):
        return 0, {}

    def step(self, action):
        return 0, 0.0, True, False, {}


class NoTools:
    def reset(self):
        pass


class Nothing:
    pass
