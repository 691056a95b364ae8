"""How ``dapo init`` lets a model be asked, how an answer is read, and the worked examples that show the model both."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations, product
from typing import Any

from dapo.data.formats import RawProblem
from dapo.errors import DataError
from dapo.rewards.compared_text import read_golds
from dapo.rewards.last_number import read_gold

SMALL = 300_000_000
r"""Parameters below which a model answers with one line: it never writes ``\boxed{}``, and reasons no further."""
TEMPLATE = "Problem: {problem}\nSolution:"
"""A prompt of a model without a chat template; a blank line ends each part of it."""
_BOX_INSTRUCTION = r"Put your final answer in \boxed{}."
_LINE_INSTRUCTION = 'End with a line "Answer: ..." that holds the result alone.'
_FORMULA = re.compile(r"[-+]?[\d,]*\.?\d+(/\d+)?%?|\\?\$.*|.*\\(frac|sqrt|boxed|pi).*")
_ASKS = re.compile(r"\\boxed|####|answer:", re.IGNORECASE)  # a problem that says itself how to answer
_NUMBER = re.compile(r"(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?(?![\w%])")
_OFTEN = 0.2  # share of the problems whose answer is an equation of their numbers, so that it is none by chance
_EXAMPLES = 4  # fewer, and a small model answers word problems in sentences
_LONG_PROBLEM = 60  # characters above which a small model leaves the form of its examples at temperature 1
_COOLER = 0.6  # on SVAMP 4 of 24 responses were cut off, and 47 of 64 at temperature 1 (SmolLM2-135M-Instruct, 4 bits)
_LONGEST_ANSWER = 200  # characters of an answer that text equality may compare
_OPERATIONS: dict[str, Callable[[Fraction, Fraction], Fraction]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b if b else Fraction(-1),
}


@dataclass(frozen=True, slots=True)
class Form:
    """How a model is asked, and how its answer is read."""

    reward: str  # math, exact, last_number, or package.module:function
    instruction: str | None = None
    examples: tuple[tuple[str, str], ...] = ()  # problems of the data and their responses
    template: str | None = None  # of prompts; None: the model's chat template, or the problem alone
    tokens: int | None = None  # that a response of this form may have; None: not known
    temperature: float = 1.0


def reward_of(problems: Sequence[RawProblem], small: bool) -> str:
    """Return the built-in reward that fits the gold answers.

    Raises:
        DataError: they are long texts, which none can judge.
    """
    if all(read_gold(one) is not None for one in _golds(problems)):
        return "last_number" if small else "math"
    if formulas(problems) >= 0.5:
        return "math"
    longest = max(problems, key=lambda problem: len(problem.answer))
    if len(longest.answer) > _LONGEST_ANSWER:
        raise DataError(
            f"{longest.row}: its gold answer has {len(longest.answer):,} characters ({longest.answer[:60]!r}...), and "
            "no built-in reward judges such a text. Give --reward package.module:function, or another --answer COLUMN; "
            "a judge is a reward of `kind: service` (docs/howto_judges.md)"
        )
    return "exact"


def formulas(problems: Sequence[RawProblem]) -> float:
    """Return the share of gold answers that look like a number or a formula."""
    return sum(_FORMULA.fullmatch(problem.answer.strip()) is not None for problem in problems) / len(problems)


def form_of(problems: Sequence[RawProblem], reward: str, *, small: bool, chats: bool, tokenizer: Any = None) -> Form:
    """Return how a model is asked.

    Args:
        problems: the first of the training data.
        reward: that judges the answers.
        small: the model has fewer than ``SMALL`` parameters.
        chats: it has a chat template, or none is known.
        tokenizer: of the model, to count tokens; None: it is not here.
    """
    if ":" in reward:
        return Form(reward)
    asks = _ASKS.search(problems[0].problem)
    mark = {"\\boxed": "\\boxed{{{}}}", "####": "#### {}"}.get(asks[0] if asks else "", "Answer: {}")
    if not small:
        return Form(reward, None if asks else _BOX_INSTRUCTION if reward == "math" else _LINE_INSTRUCTION)
    if reward == "last_number" and not asks:
        mark = "The answer is {}."
    instruction = None if asks or reward == "last_number" else _LINE_INSTRUCTION
    written = [_Written(p.problem, mark.format(read_golds(p.answer)[0])) for p in problems if not p.messages]
    if reward == "last_number":
        worked = [found for problem in problems if (found := _worked(problem, f"\n{mark}" if asks else ""))]
        written = worked if len(worked) >= _OFTEN * len(problems) else written
    tokens = None if tokenizer is None or not written else _most_tokens([one.response for one in written], tokenizer)
    examples = tuple((one.problem, one.response if chats else f" {one.response}") for one in _shown(written))
    temperature = 1.0 if _usual_length(written) <= _LONG_PROBLEM else _COOLER
    return Form(reward, instruction, examples, None if chats else TEMPLATE, tokens, temperature)


def with_room(form: Form, tokenizer: Any, positions: int) -> Form:
    """Return the form with as many worked examples as a quarter of the model's positions holds."""
    examples = form.examples
    while examples and len(tokenizer("\n".join(map("\n".join, examples)))["input_ids"]) > positions // 4:
        examples = examples[:-1]
    return replace(form, examples=examples)


@dataclass(frozen=True, slots=True)
class _Written:
    problem: str
    response: str
    kind: str = ""  # operations of an equation


def _worked(problem: RawProblem, mark: str) -> _Written | None:
    """Return a problem with its equation as the response; None if it has none."""
    found = None if problem.messages else equation(problem.problem, problem.answer)
    if found is None:
        return None
    return _Written(problem.problem, found + mark.format(problem.answer), re.sub(r"[\d.= ]", "", found))


def _shown(written: Sequence[_Written]) -> list[_Written]:
    """Return a few examples that are no longer than usual: one of each kind of equation first, then the next."""
    usual = _usual_length(written)
    short = [one for one in written if len(one.problem) <= usual]
    kinds = {one.kind or one.response: one for one in reversed(short)}
    others = [one for one in short if one not in kinds.values()]
    return [*(one for one in short if one in kinds.values()), *others][:_EXAMPLES]


def _usual_length(written: Sequence[_Written]) -> int:
    return sorted(len(one.problem) for one in written)[len(written) // 2] if written else 0


def _golds(problems: Sequence[RawProblem]) -> list[str]:
    return [one for problem in problems for one in read_golds(problem.answer)]


def _most_tokens(texts: Sequence[str], tokenizer: Any) -> int:
    """Return the tokens that a response of such a form may have: half more than the longest has, and an end."""
    longest = max(len(ids) for ids in tokenizer(list(texts), add_special_tokens=False)["input_ids"])
    return max(16, 8 * -(-(3 * longest // 2 + 2) // 8))


def equation(problem: str, answer: str) -> str | None:
    """Return the equation that makes the answer of all numbers of a problem; None if there is none, or another one.

    Another one may also leave numbers out. What remains is right by more than chance.

    >>> equation("Debby had 32 pieces, her sister 42. They ate 35. How many are left?", "39")
    '32 + 42 - 35 = 39'
    """
    gold, numbers = read_gold(answer), [text.replace(",", "") for text in _NUMBER.findall(problem)]
    if gold is None or not 2 <= len(numbers) <= 4:
        return None
    found = [text for text, value in _computed(numbers) if value == gold]
    pairs = combinations(numbers, 2) if len(numbers) > 2 else ()
    if len(found) != 1 or any(value == gold for pair in pairs for _, value in _computed(pair)):
        return None
    return f"{found[0]} = {answer}"


def _computed(numbers: Sequence[str]) -> Iterator[tuple[str, Fraction]]:
    """Yield sums and differences of all numbers, and of two the other operations, with their values."""
    two = len(numbers) == 2
    for signs in product("+-*/" if two else "+-", repeat=len(numbers) - 1):
        for order in (numbers, numbers[::-1])[: 1 + (two and signs[0] in "-/")]:
            value = Fraction(order[0])
            for sign, number in zip(signs, order[1:], strict=True):
                value = _OPERATIONS[sign](value, Fraction(number))
            yield (
                " ".join([order[0], *(f"{sign} {number}" for sign, number in zip(signs, order[1:], strict=True))]),
                value,
            )
