"""Stand in for the library ``verifiers`` where it is not installed: of its classic interface what dapo calls.

``make test-verifiers`` runs the library itself. Its rubrics tell by a parameter's name whether a reward function sees
one response or a group: here ``completions`` stands for all such names.
"""

from __future__ import annotations

import importlib
import inspect

from verifiers.errors import Error, OverlongPromptError


class Rubric:
    """Reward functions and their weights."""

    def __init__(self, funcs, weights):
        self.funcs = list(zip(funcs, weights, strict=True))

    def _get_group_reward_funcs(self):
        return [func for func, _ in self.funcs if "completions" in inspect.signature(func).parameters]

    async def score_rollout(self, state):
        await self.score_group([state])

    async def score_group(self, states):
        """Write reward and metrics into each state."""
        grouped = self._get_group_reward_funcs()
        for state in states:
            state.update(reward=0.0, metrics={})
        for func, weight in self.funcs:
            completions = [state["completion"] for state in states]
            found = func(completions) if func in grouped else [func(each) for each in completions]
            for state, value in zip(states, found, strict=True):
                state["metrics"][func.__name__] = value
                state["reward"] += weight * value

    async def cleanup(self, state):
        pass


class Environment:
    """A loop of turns until ``env_response`` returns None."""

    tool_defs = None

    def __init__(self, rubric):
        self.rubric = rubric

    def build_dataset(self):
        return None

    def build_eval_dataset(self):
        return None

    async def rollout(self, record, client, model, sampling):
        """Play an episode; return its state."""
        state = {**record, "completion": [], "error": None}
        try:
            while True:
                messages = [*state["prompt"], *state["completion"]]
                response = await client.get_response(messages, model, sampling, None)
                state["completion"].append({"role": "assistant", "content": response.message.content})
                reply = await self.env_response([*state["prompt"], *state["completion"]], state)
                if reply is None:
                    return state
                state["completion"] += reply
        except OverlongPromptError:
            return state
        except Error as error:
            state["error"] = error
            return state

    async def env_response(self, messages, state):
        raise NotImplementedError


def load_environment(name, **args):
    """Return what a module's own ``load_environment`` makes."""
    return importlib.import_module(name.replace("-", "_")).load_environment(**args)
