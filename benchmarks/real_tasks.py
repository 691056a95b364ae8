"""The problems of ``real_problems.py``: tasks of reasoning-gym and three public sets of word problems.

A task says what its problems are, how many of them are imitated, and how its model looks. ``given`` chooses the
problems of one seed: examples to imitate, problems to train on by reward, held-out problems.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dapo.config.schema import DataSource
from dapo.data.formats import RawProblem
from dapo.data.load import load_problems, overlap_key
from dapo.data.readers import read_records
from dapo.links import install

PUBLIC = Path(os.environ.get("DAPO_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
WORDS = "word_problems"
HELD_OUT_SEED, HELD_OUT_LOSS_SEED, IMITATED_SEED, MORE_SEED, REWARDED_SEED = 2, 3, 1000, 3000, 100
"""Of procedural problems; the seed of a run is added to the last three. No two are ever the same for runs below 900."""
MARK = "####"
Example = tuple[RawProblem, str]  # and the response that is imitated


@dataclass(frozen=True)
class Task:
    """What is learnt, and with how much work. The numbers were chosen on seed 11, which no result is of; those of the
    word problems by what time allowed."""

    options: Mapping[str, Any]  # of the generator
    examples: int  # that are imitated, each once
    response_tokens: int
    hard: str  # what makes its problems hard, in words
    size_of: Callable[[RawProblem], int]  # and as a number
    worked: Callable[[RawProblem], str] | None = None  # the steps to its answer, which the start imitates; None: none
    epochs: int = 1
    steps: int = 40  # of DAPO
    learning_rate: float = 5e-4
    shape: Mapping[str, int] = field(default_factory=lambda: {"hidden": 96, "layers": 2, "heads": 3, "ffn": 256})
    vocabulary: int = 258


def digits(problem: RawProblem) -> int:
    return len(re.findall(r"\d", problem.problem))


def numbers(text: str) -> list[int]:
    return [int(found) for found in re.findall(r"\d+", text)]


def euclid(problem: RawProblem) -> str:
    """``46, 8``: ``46%8=6 8%6=2 6%2=0``."""
    a, b = numbers(problem.problem)
    steps = []
    while b:
        steps.append(f"{a}%{b}={a % b}")
        a, b = b, a % b
    return " ".join(steps)


def legs_of_each(problem: RawProblem) -> str:
    """``9 sea slugs, 6 praying mantiss``: ``9*0=0 6*6=36 0+36=36``, each animal from what one of it has."""
    of_animal = animals()
    found = [(int(count), animal) for count, animal in re.findall(r"(\d+) ([a-z ]+)", problem.problem)]
    each = [(count, of_animal[animal if count == 1 else animal.removesuffix("s")]) for count, animal in found]
    steps = [f"{count}*{legs}={count * legs}" for count, legs in each]
    if len(each) > 1:
        steps.append(f"{'+'.join(str(count * legs) for count, legs in each)}={sum(a * b for a, b in each)}")
    return " ".join(steps)


@functools.cache
def animals() -> dict[str, int]:
    from reasoning_gym.arithmetic.leg_counting import ANIMALS

    return dict(ANIMALS)


TASKS: dict[str, Task] = {
    "gcd": Task({"max_value": 99}, 16_000, 4, "greatest common divisor", lambda problem: int(problem.answer)),
    "leg_counting": Task(
        {"min_animals": 1, "max_animals": 2, "max_instances": 9},
        16_000,
        5,
        "legs",
        lambda problem: int(problem.answer),
    ),
    "spell_backward": Task({"max_word_len": 5}, 16_000, 8, "letters", lambda problem: len(problem.answer)),
    "chain_sum": Task({"max_terms": 2, "max_digits": 2}, 24_000, 6, "digits", digits),
    "count_bits": Task({}, 16_000, 4, "digits", lambda problem: max(map(len, re.findall(r"\d+", problem.problem)))),
    # The same problems, held-out ones included, where a start shows its work: reward has steps to make more reliable.
    "gcd_worked": Task(
        {"max_value": 99},
        8_000,
        80,
        "steps of Euclid",
        lambda problem: len(euclid(problem).split()),
        worked=euclid,
    ),
    "leg_counting_worked": Task(
        {"min_animals": 1, "max_animals": 2, "max_instances": 9},
        16_000,
        40,
        "legs",
        lambda problem: int(problem.answer),
        worked=legs_of_each,
        learning_rate=1e-4,
    ),
    WORDS: Task(
        {},
        2_400,  # all there are
        40,
        "numbers in the text",
        lambda problem: len(re.findall(r"\d+", problem.problem)),
        epochs=6,
        steps=20,
        vocabulary=1000,
    ),
}


def pattern(name: str) -> str | None:
    """How a response's answer is found: what shows its work ends with a mark, the others are nothing but the answer."""
    return rf"{MARK} *(-?[\d.]+)\s*$" if name == WORDS or TASKS[name].worked else None


def generator(name: str) -> str:
    return f"reasoning_gym/{name.removesuffix('_worked')}"


# ---------------------------------------------------------------------------------------------------- procedural


def procedural(name: str, seed: int, size: int) -> list[RawProblem]:
    """``size`` problems of a generator, through the source that recipes use."""
    return load_problems(DataSource(task=generator(name), options=dict(TASKS[name].options), seed=seed, size=size))


def common_start(texts: Sequence[str]) -> str:
    first, last = min(texts), max(texts)  # in the order of the alphabet, so what these two share is in all
    return first[: next((n for n, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))]


def common_ends(texts: Sequence[str]) -> tuple[str, ...]:
    """What all texts begin with, and what they all end with; each only where there is such a thing."""
    begin = common_start(texts)
    end = common_start([text[len(begin) :][::-1] for text in texts])[::-1]
    return tuple(part for part in (begin, end) if part)


# ---------------------------------------------------------------------------------------------------- word problems


def missing(name: str) -> str:
    """Why a task cannot be made here; "" where it can."""
    if name == WORDS:
        absent = [
            path
            for path in ("svamp/SVAMP.json", "multiarith/test.jsonl", "gsm8k/train.jsonl")
            if not (PUBLIC / path).exists()
        ]
        return f"{PUBLIC / absent[0]} is not here; set DAPO_DATA to the folder of the public sets" if absent else ""
    try:
        import reasoning_gym  # noqa: F401
    except ImportError:
        return f"reasoning-gym is not installed: {install('tasks')}"
    return ""


def equations(answer: str) -> str | None:
    """A worked solution of GSM8K as its calculator's lines and its result: ``48/2=24 48+24=72 #### 72``.

    None where it has none, or more than two: what is too long for a model of this size.
    """
    found = re.findall(r"<<([^<>]+)>>", answer)
    result = answer.rpartition(MARK)[2].strip().replace(",", "")
    return f"{' '.join(found)} {MARK} {result}" if 1 <= len(found) <= 2 else None


def equation(record: Mapping[str, Any], answer: str) -> str:
    """The equation of a SVAMP record in the same form: ``( 76.0 - 25.0 )`` is ``76-25=51 #### 51``."""
    text = re.sub(r"\.0\b|\s", "", str(record["Equation"]))
    return f"{text.removeprefix('(').removesuffix(')')}={answer} {MARK} {answer}"


def is_held_out(problem: RawProblem, tenths: int) -> bool:
    """So many tenths of the problems, by their text: equal ones are all on one side, in every run."""
    return hashlib.sha256(overlap_key(problem.problem).encode()).digest()[0] % 10 < tenths


def word_problems() -> dict[str, tuple[list[Example], list[Example]]]:
    """By set: what is trained on, and what is held out, with responses to imitate ("" where the set has none).

    SVAMP and MultiArith have no split of their own: three tenths are held out. Of GSM8K, whose split is kept, only
    problems of at most 200 characters and two steps.
    """
    found: dict[str, tuple[list[Example], list[Example]]] = {}
    for name, path in (("svamp", "svamp/SVAMP.json"), ("multiarith", "multiarith/test.jsonl")):
        problems = load_problems(DataSource(path=str(PUBLIC / path)))
        told = [(p, equation(p.extra, p.answer) if name == "svamp" else "") for p in problems]
        found[name] = tuple([one for one in told if is_held_out(one[0], 3) == side] for side in (False, True))
    sides = []
    for split in ("train", "test"):
        file = str(PUBLIC / "gsm8k" / f"{split}.jsonl")
        worked = [equations(str(record["answer"])) for _, record in read_records(file, "train")]
        pairs = zip(load_problems(DataSource(path=file)), worked, strict=True)
        sides.append([(p, said) for p, said in pairs if said and len(p.problem) <= 200])
    found["gsm8k"] = (sides[0], sides[1])
    return found


# ---------------------------------------------------------------------------------------------------- files


@dataclass(frozen=True)
class Given:
    """What one task and seed work with. Sources are as recipes name them."""

    train: list[dict[str, Any]]  # of DAPO
    validation: list[dict[str, Any]]
    imitated: list[Example]
    more: list[Example]  # for imitating longer
    loss: list[Example]  # on which imitation is measured
    rewarded: dict[str, list[RawProblem]]  # what ``train`` names
    held_out: dict[str, list[RawProblem]]  # what ``validation`` names
    phrases: tuple[str, ...] = ()  # what every problem begins and ends with: a token each


def given(folder: Path, name: str, seed: int, examples: int, held_out: int) -> Given:
    """Choose the problems of one task and seed; those of public sets are written to ``folder``."""
    return (_of_words if name == WORDS else _of_generator)(folder, name, seed, examples, held_out)


def _of_words(folder: Path, name: str, seed: int, examples: int, held_out: int) -> Given:
    sets = word_problems()
    trained = {key: [p for p, _ in told] for key, (told, _) in sets.items()}
    asked = {key: [p for p, _ in told][:held_out] for key, (_, told) in sets.items()}
    told = [one for side, _ in sets.values() for one in side][:examples]
    return Given(
        train=[{"path": write_problems(folder / f"{key}.jsonl", of)} for key, of in trained.items()],
        validation=[
            {"path": write_problems(folder / f"{key}_held_out.jsonl", of), "name": key} for key, of in asked.items()
        ],
        imitated=told,
        more=told,  # there are no others
        loss=[one for key in ("svamp", "gsm8k") for one in sets[key][1][:held_out]],
        rewarded=trained,
        held_out=asked,
    )


def _of_generator(folder: Path, name: str, seed: int, examples: int, held_out: int) -> Given:
    task, size = TASKS[name], 4000
    source = {"task": generator(name), "options": dict(task.options)}

    def said(problem: RawProblem) -> str:
        return f"{task.worked(problem)} {MARK} {problem.answer}" if task.worked else problem.answer

    imitated, more, loss = (
        [(p, said(p)) for p in procedural(name, of, count)]
        for of, count in ((IMITATED_SEED + seed, examples), (MORE_SEED + seed, examples), (HELD_OUT_LOSS_SEED, 64))
    )
    return Given(
        train=[{**source, "seed": REWARDED_SEED + seed, "size": size}],
        validation=[{**source, "name": name, "seed": HELD_OUT_SEED, "size": held_out}],
        imitated=imitated,
        more=more,
        loss=loss,
        rewarded={name: procedural(name, REWARDED_SEED + seed, size)},
        held_out={name: procedural(name, HELD_OUT_SEED, held_out)},
        phrases=common_ends([p.problem for p, _ in imitated]),
    )


def write_problems(path: Path, problems: Iterable[RawProblem]) -> str:
    path.write_text("".join(json.dumps({"problem": p.problem, "answer": p.answer}) + "\n" for p in problems))
    return str(path)


def write_examples(path: Path, examples: Iterable[Example]) -> str:
    """Examples as ``dapo sft`` reads them; problems without a response to imitate are left out."""
    path.write_text("".join(json.dumps({"prompt": p.problem, "response": said}) + "\n" for p, said in examples if said))
    return str(path)


def without_held_out(examples: Iterable[Example], held_out: Iterable[RawProblem]) -> list[Example]:
    keys = {overlap_key(p.problem) for p in held_out}
    return [(p, said) for p, said in examples if overlap_key(p.problem) not in keys]


def leaks(problems: Iterable[RawProblem], held_out: Iterable[RawProblem]) -> dict[str, int]:
    """How many problems there are, how many are held-out ones letter by letter, and how many are taken out: the trainer
    compares letters and digits alone, which takes out more."""
    listed, asked = list(problems), list(held_out)
    texts, keys = {p.problem for p in asked}, {overlap_key(p.problem) for p in asked}
    return {
        "problems": len(listed),
        "exact": sum(p.problem in texts for p in listed),
        "taken_out": sum(overlap_key(p.problem) in keys for p in listed),
    }
