"""A classic environment of verifiers: two tries at a sum, and how far off the first one was."""

import random

import verifiers as vf
from datasets import Dataset


def problem(rng):
    """Return the terms of a sum that is not negative, as text, and its total."""
    while True:
        terms = [rng.randrange(1, 10)] + [
            rng.choice((-1, 1)) * rng.randrange(1, 10) for _ in range(rng.randrange(1, 4))
        ]
        totals = [sum(terms[: n + 1]) for n in range(len(terms))]
        if min(totals) >= 0:
            return " ".join([str(terms[0]), *(f"{term:+d}" for term in terms[1:])]) + " =", totals[-1]


def rows(count, seed):
    rng = random.Random(seed)
    made = [problem(rng) for _ in range(count)]
    return Dataset.from_list(
        [{"prompt": [{"role": "user", "content": text}], "answer": str(total)} for text, total in made]
    )


def said(message):
    return (message.content or "").rpartition("=")[2].strip()


def right(completion, answer):
    turns = [message for message in completion if message.role == "assistant"]
    return float(said(turns[-1]) == answer)


def first_try(completion, answer):
    return float(said(completion[0]) == answer)


def fewest_turns(completions) -> list[float]:
    turns = [sum(message.role == "assistant" for message in completion) for completion in completions]
    return [float(count == min(turns)) for count in turns]


class FarSums(vf.MultiTurnEnv):
    async def env_response(self, messages, state, **kwargs):
        return [{"role": "user", "content": f"{int(state['answer']) - int(said(messages[-1])):+d}"}]

    @vf.stop
    async def over(self, state):
        if not state["trajectory"]:
            return False
        number = said(state["trajectory"][-1]["completion"][-1])
        return number == state["answer"] or not number.isdecimal() or abs(int(state["answer"]) - int(number)) > 9


def load_environment(size=4000, held_out=64, compared=False):
    """With ``compared`` half of the reward is for those of a group that needed the fewest turns."""
    rubric = vf.Rubric(funcs=[right, fewest_turns], weights=[0.5, 0.5]) if compared else vf.Rubric(funcs=[right])
    rubric.add_metric(first_try)
    return FarSums(dataset=rows(size, 1), eval_dataset=rows(held_out, 2), rubric=rubric, max_turns=2)
