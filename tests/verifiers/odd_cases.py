"""Environments of verifiers that fail, rewrite, compare or call tools, by name."""

import asyncio

import far_sums
import verifiers as vf


class Raises(far_sums.FarSums):
    async def env_response(self, messages, state, **kwargs):
        if state["answer"] == "13":
            raise ValueError("unlucky")
        if state["answer"] == "14":
            raise vf.Error("recorded")
        return await super().env_response(messages, state, **kwargs)


class Rewrites(far_sums.FarSums):
    async def get_prompt_messages(self, state):
        messages = await super().get_prompt_messages(state)
        return messages if len(messages) == 1 else [messages[0], messages[-1]]


class Changes(far_sums.FarSums):
    async def setup_state(self, state):
        state["prompt"] = [vf.UserMessage(content="another")]
        return state


class AsksTwice(far_sums.FarSums):
    async def env_response(self, messages, state, **kwargs):
        await asyncio.gather(*(self.get_model_response(state, messages) for _ in range(2)))
        return await super().env_response(messages, state, **kwargs)


def breaks(completion):
    raise KeyError("gone")


def truncated(state):
    return float(state["is_truncated"])


def compared(completions, **kwargs) -> list[float]:
    raise KeyError(len(completions))


def too_few(states) -> list[float]:
    return [1.0]


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: one.
        b: the other.
    """
    return a + b


def load_environment(kind="raises"):
    data = far_sums.rows(20, 1)
    if kind == "tools":
        return vf.ToolEnv(tools=[add], dataset=data, rubric=vf.Rubric(funcs=[far_sums.right]), max_turns=3)
    if kind == "mixture":
        return vf.EnvGroup([far_sums.load_environment(20), far_sums.load_environment(20, compared=True)])
    known = {"breaks": [breaks], "truncated": [truncated], "compared": [compared], "too_few": [too_few]}
    funcs = known.get(kind, [far_sums.right])
    made = {"rewrites": Rewrites, "changes": Changes, "twice": AsksTwice}.get(kind, Raises)
    return made(dataset=data, rubric=vf.Rubric(funcs=funcs), max_turns=2)
