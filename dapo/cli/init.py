"""``dapo init``: a commented recipe for the user's model, data and machine."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from errno import ENAMETOOLONG
from itertools import islice
from pathlib import Path

from dapo.config.files import parse_yaml
from dapo.config.load import recipe_from_dict
from dapo.config.problems import brief
from dapo.config.write import to_yaml
from dapo.data.formats import RawProblem, detect, to_problems
from dapo.data.readers import read_records
from dapo.errors import DataError, ModelError, RecipeError
from dapo.observe.jsonl import write_atomically

_LOOKED_AT = 50  # records
_NUMBER = re.compile(r"[-+]?[\d,]*\.?\d+(/\d+)?%?|\\?\$.*|.*\\(frac|sqrt|boxed|pi).*")
_MATH_INSTRUCTION = r"Put your final answer in \boxed{}."
_EXACT_INSTRUCTION = 'End with a line "Answer: ..." that holds the result alone.'
_INSTRUCTIONS = {"math": _MATH_INSTRUCTION, "exact": _EXACT_INSTRUCTION}
_TYPED = {
    "run.name": "NAME",
    "model.path": "--model",
    "model.device": "--device",
    "data.train.0.path": "--data",
    "data.validation.0.path": "--validation",
    "rewards.0.function": "--reward",
    "rollout.max_response_tokens": "--max-tokens",
    "trainer.steps": "--steps",
}
"""What a person types for a setting."""
_EXACT_PATTERN = r"(?im)^answer:\s*(.+?)\s*$"
_TOTAL_PATTERN = r"=\s*(-?\d+)\s*$"
"""Reads the last total, with which the built-in models end."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Answers of the user. None: not given."""

    name: str
    model: str
    train: str
    validation: str | None = None
    problem: str | None = None  # column
    answer: str | None = None  # column
    reward: str | None = None  # math, exact, last_number, or package.module:function
    device: str | None = None
    max_tokens: int | None = None
    steps: int = 100

    @property
    def builtin(self) -> bool:
        """Whether the model is a built-in one, which writes sums and knows no sentence."""
        from dapo.models.builtin import is_builtin  # imports torch

        return is_builtin(self.model)


@dataclass(frozen=True, slots=True)
class _Data:
    fields: dict[str, str]  # empty where the layout is one that is known
    first: RawProblem
    numbers: float  # share of gold answers that a mathematical verifier reads


def write_recipe(wanted: Wanted, out: Path, *, force: bool = False) -> list[str]:
    """Write the recipe to ``out``; returns lines that say what was found.

    Raises:
        RecipeError: ``out`` exists already, or the recipe would be refused.
        DataError: the data cannot be read, or its columns are not known.
        ModelError: the model's folder cannot be read.
    """
    if _exists(out) and not force:
        raise RecipeError(f"{out} exists already; give another NAME, or --force to write over it")
    data = _look_at(wanted, wanted.train)
    if wanted.validation is not None:
        _look_at(wanted, wanted.validation)
    machine = _machine(wanted)
    reward = wanted.reward or ("math" if data.numbers >= 0.9 and not wanted.builtin else "exact")
    text = _text(wanted, data, reward, machine)
    _check(text, out, wanted.name)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, text)
    except OSError as error:
        raise _unwritable(out, error) from None
    return [
        f"first problem: {data.first.problem[:100]!r}, answer {data.first.answer[:60]!r}",
        f"reward: {reward}" + ("" if wanted.reward else f" ({data.numbers:.0%} of the first answers are numbers)"),
        f"machine: {machine.said}",
    ]


def _exists(out: Path) -> bool:
    try:
        return out.exists()
    except OSError as error:
        raise _unwritable(out, error) from None


def _unwritable(out: Path, error: OSError) -> RecipeError:
    move = f"a shorter NAME than these {len(out.stem)} characters" if error.errno == ENAMETOOLONG else "another NAME"
    return RecipeError(f"{brief(str(out))} cannot be written ({error.strerror}); give {move}")


def _check(text: str, out: Path, name: str) -> None:
    """Refuse a recipe in the words of the command line.

    Raises:
        RecipeError: it would be refused.
    """
    try:
        recipe_from_dict(parse_yaml(text, str(out))[0], [f"run.name={name}"], path=out)  # a run will be called so
    except RecipeError as error:
        said = str(error)
        for key, typed in _TYPED.items():
            said = re.sub(rf"^  {re.escape(key)}(?=:|$)", f"  {typed} ({key})", said, flags=re.MULTILINE)
        raise RecipeError(said) from None


def _look_at(wanted: Wanted, path: str) -> _Data:
    records = list(islice(read_records(path), _LOOKED_AT))
    if not records:
        raise DataError(f"{path} holds no record")
    names = list(records[0][1])
    fields = {ours: theirs for ours, theirs in (("problem", wanted.problem), ("answer", wanted.answer)) if theirs}
    if not fields:
        try:
            detect(records[0][1])
        except DataError:
            raise DataError(
                f"{path} has the columns {', '.join(names)}: say which one is the problem and which one the answer "
                "with --problem COLUMN --answer COLUMN"
            ) from None
    unknown = [name for name in fields.values() if name.split(".")[0] not in names]
    if unknown:
        raise DataError(f"{path} has no column {unknown[0]!r}; it has {', '.join(names)}")
    problems = list(to_problems(records, "auto" if not fields else "plain", fields, []))
    if not problems:
        raise DataError(f"none of the first {len(records)} records of {path} has an answer")
    read = sum(_NUMBER.fullmatch(problem.answer.strip()) is not None for problem in problems)
    return _Data(fields, problems[0], read / len(problems))


@dataclass(frozen=True, slots=True)
class _Machine:
    cuda: bool
    said: str
    parameters: int | None
    positions: int | None


def _machine(wanted: Wanted) -> _Machine:
    import torch

    cuda = torch.cuda.is_available() if wanted.device in (None, "auto") else str(wanted.device).startswith("cuda")
    said = "no GPU found: settings for a CPU"
    if cuda:
        properties = torch.cuda.get_device_properties(0) if torch.cuda.is_available() else None
        said = "settings for a GPU"
        if properties is not None:
            said = f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB"
    parameters = positions = None
    from dapo.models.cached import cache_folder
    from dapo.models.gguf_file import dequantised, is_gguf

    folder: str | Path = wanted.model
    if is_gguf(wanted.model):
        folder = dequantised(wanted.model, cache_folder(), lambda note: print(note, file=sys.stderr, flush=True))
    if Path(folder).is_dir():
        from dapo.models.facts import read_facts

        facts = read_facts(str(folder), "float32")
        parameters, positions = facts.parameters, facts.positions
        said += f"; the model has {parameters / 1e6:,.1f} million parameters"
    elif wanted.model.startswith(("/", "./", "../", "~")):
        raise ModelError(f"there is no model folder {wanted.model}")
    return _Machine(cuda, said, parameters, positions)


def _text(wanted: Wanted, data: _Data, reward: str, machine: _Machine) -> str:
    limit = wanted.max_tokens or (32 if wanted.builtin else 1024 if machine.cuda else 256)
    prompt = 1024
    if machine.positions is not None and prompt + limit > machine.positions:
        prompt = max(1, machine.positions // 2)
        limit = min(limit, machine.positions - prompt)
    small = machine.parameters is not None and machine.parameters < 50_000_000
    rate = "5.0e-4" if wanted.builtin else "1.0e-4" if small else "1.0e-6"
    size, of = (32, 8) if machine.cuda else (8, 8)
    lines = [
        f"# {wanted.name}: {wanted.model} on {wanted.train}. Written by `dapo init`; look at it with",
        f"# `dapo check {wanted.name}.yaml`, then `dapo train {wanted.name}.yaml`. `dapo explain KEY` explains a key.",
        "preset: dapo                      # clip-higher, dynamic sampling, token-level loss, overlong shaping",
        "",
        "model:",
        f"  path: {_one(wanted.model)}      # a Hugging Face folder or hub name, safetensors",
    ]
    if machine.cuda:
        lines += [
            "  dtype: bfloat16                 # of the weights while training; the optimiser keeps float32",
            "  activation_checkpointing: full  # less memory, about a third more time in the backward pass",
        ]
    lines += [f"  device: {wanted.device}"] if wanted.device not in (None, "auto") else []
    lines += _data_lines(wanted, data)
    instruction = None if wanted.builtin else _INSTRUCTIONS.get(reward)
    if instruction is not None:
        lines += [f"  instruction: {_one(instruction)}   # appended to every problem"]
    lines += [
        f"  max_prompt_tokens: {prompt}         # longer prompts are dropped, and counted",
        "",
        "rewards:",
        "  - name: accuracy                # one reward must be called so; dynamic sampling and evaluation read it",
        *_reward(reward, wanted.builtin),
        "",
        "rollout:",
        f"  prompts_per_step: {size}            # P: more is steadier, and slower",
        f"  group_size: {of}                   # G: responses per problem; more finds rare right answers",
        f"  max_response_tokens: {limit}       # a response that reaches it is truncated",
    ]
    if machine.cuda:
        lines += ["  # engine: vllm  # faster for long responses; needs the package vllm: docs/engines.md"]
    lines += [
        "",
        "learner:",
        f"  learning_rate: {rate}           # try a third and three times of it; 1e-6 is the paper's, for 32 B",
        f"  minibatch_prompts: {size // 2}            # groups per optimiser step: two optimiser steps a training step",
        f"  warmup: {min(10, wanted.steps // 10)}                      # training steps until the whole rate is taken",
        "",
        "validation:",
        "  every: 10                       # training steps between evaluations",
        "  samples: 4                      # responses per held-out problem",
        "",
        "trainer:",
        f"  steps: {wanted.steps}",
    ]
    return "\n".join(map(_aligned, lines)) + "\n"


def _data_lines(wanted: Wanted, data: _Data) -> list[str]:
    lines = ["", "data:", "  train:", *_source(wanted.train, data.fields)]
    if wanted.validation is not None:
        lines += [
            "  validation:                     # held out: accuracy is measured on it",
            *_source(wanted.validation, data.fields),
        ]
    else:
        lines += [
            "  # validation:                   # give a held-out file, or the run cannot say whether it learned:",
            "  #   - path: test.jsonl",
        ]
    return lines


def _aligned(line: str) -> str:
    """Return a line whose comment is in the column of the others."""
    setting, mark, comment = line.rpartition("  # ")
    return f"{setting.rstrip():<32}{mark}{comment}" if setting.strip() else line


def _reward(reward: str, builtin: bool) -> list[str]:
    if ":" in reward:
        return [
            "    kind: function                # f(prompt, completion) -> a number, or a dict of numbers",
            f"    function: {_one(reward)}",
        ]
    if reward == "math":
        return [r"    kind: math                    # reads the last \boxed{}, line `Answer: ...` or line `#### ...`"]
    if reward == "last_number":
        return ["    kind: last_number             # the last number of the response; tolerance: 0.01 allows 1 %"]
    pattern = _TOTAL_PATTERN if builtin else _EXACT_PATTERN
    return [
        "    kind: exact                   # text equality after normalising; also: math, last_number, regex, function",
        f"    pattern: {_one(pattern)}",
    ]


def _source(path: str, fields: dict[str, str]) -> list[str]:
    lines = [f"    - path: {_one(path)}"]
    if fields:
        named = ", ".join(f"{ours}: {_one(theirs)}" for ours, theirs in fields.items())
        lines.append(f"      fields: {{{named}}}    # our name: the name in your file")
    return lines


def _one(value: str) -> str:
    """Return a text as a YAML value on one line."""
    return to_yaml([value]).strip().removeprefix("- ")


def checked_reward(reward: str | None) -> str | None:
    """``reward`` if it is one that a recipe can be written for.

    Raises:
        RecipeError: it is none.
    """
    if reward in (None, "math", "exact", "last_number") or re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", reward or ""):
        return reward
    raise RecipeError(
        f"--reward {reward}: expected math, exact, last_number, or a function of yours as package.module:function"
    )


def needs(given: Sequence[tuple[str, object]]) -> None:
    """Raise for missing flags if no terminal can ask for them.

    Raises:
        RecipeError: with the whole command.
    """
    missing = [flag for flag, value in given if value is None]
    if missing:
        raise RecipeError(
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing, and there is no terminal to ask "
            "in: dapo init NAME --model MODEL --data TRAIN.jsonl [--validation TEST.jsonl]"
        )
