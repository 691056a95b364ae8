"""``dapo init``: a commented recipe for the user's model, data and machine."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from errno import ENAMETOOLONG
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dapo.cli.init_form import SMALL, Form, form_of, formulas, reward_of, with_room
from dapo.config.faults import brief
from dapo.config.load import recipe_from_dict
from dapo.config.schema import Recipe
from dapo.config.write_yaml import to_yaml
from dapo.config.yaml_files import parse_yaml
from dapo.data.answers import Answers
from dapo.data.formats import RawProblem, fields_line, to_problems
from dapo.data.readers import read_records
from dapo.errors import DataError, ModelError, RecipeError
from dapo.observe.jsonl import write_atomically
from dapo.observe.text import span

if TYPE_CHECKING:  # torch comes with it
    from dapo.cli.init_sizes import Sizes
    from dapo.types.model import ModelFacts

_LOOKED_AT = 200  # records
_PROMPT_TOKENS = 1024
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
_ANY = {"train": [{"path": "-"}]}
_BUILTIN_TOKENS = 32
_EXACT_PATTERN = r"(?im)^\s*answer:\s*(.+?)\s*$"
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
    steps: int | None = None

    @property
    def builtin(self) -> bool:
        """Whether the model is a built-in one, which writes sums and knows no sentence."""
        from dapo.models.builtin import is_builtin  # imports torch

        return is_builtin(self.model)


@dataclass(frozen=True, slots=True)
class _Data:
    fields: dict[str, str]  # empty where the layout is one that is known
    problems: list[RawProblem]  # the first


def write_recipe(wanted: Wanted, out: Path, *, force: bool = False) -> list[str]:
    """Write the recipe to ``out``; returns lines that say what was found.

    Raises:
        RecipeError: ``out`` exists already, or the recipe would be refused, or the model does not fit this machine.
        DataError: the data cannot be read, or its columns are not known, or no reward judges its answers.
        ModelError: the model's folder cannot be read.
    """
    if _exists(out) and not force:
        raise RecipeError(f"{out} exists already; give another NAME, or --force to write over it")
    data = _look_at(wanted, wanted.train)
    held_out = None if wanted.validation is None else _look_at(wanted, wanted.validation)
    machine = _machine(wanted)
    small = not wanted.builtin and machine.parameters is not None and machine.parameters < SMALL
    reward = wanted.reward or ("exact" if wanted.builtin else reward_of(data.problems, small))
    form = Form(reward, tokens=_BUILTIN_TOKENS)
    if not wanted.builtin:
        form = form_of(data.problems, reward, small=small, chats=machine.chats, tokenizer=machine.tokenizer)
        if machine.tokenizer is not None and machine.facts is not None and machine.facts.positions is not None:
            form = with_room(form, machine.tokenizer, machine.facts.positions)
    text, taken = _sized(wanted, data, held_out, form, machine, out)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, text)
    except OSError as error:
        raise _unwritable(out, error) from None
    first = data.problems[0]
    lines = [
        f"first problem: {first.problem[:100]!r}, answer {first.answer[:60]!r}",
        f"reward: {reward}"
        + ("" if wanted.reward else f" ({formulas(data.problems):.0%} of the first answers are numbers or formulas)"),
        f"machine: {machine.said}",
    ]
    if held_out is None:
        lines.append("no held-out problems: the run cannot say whether it learned; give some with --validation FILE")
    for problem, response in form.examples:
        lines.append(f"worked example, not trained on: {problem[:100]!r}, {response.strip()!r}")
    return lines + taken


def _sized(
    wanted: Wanted, data: _Data, held_out: _Data | None, form: Form, machine: _Machine, out: Path
) -> tuple[str, list[str]]:
    """Return the recipe in sizes that fit this machine, and lines that say what they take."""
    from dapo.cli.check_memory import size_text
    from dapo.cli.init_sizes import candidates, choose_sizes, prompts_of

    write = partial(_text, wanted, data, held_out, form, machine)
    tried = list(candidates(machine.facts, cuda=machine.cuda, builtin=wanted.builtin, steps=wanted.steps))
    first = _checked(write(tried[0], _PROMPT_TOKENS), out, wanted.name)
    if machine.facts is None or machine.elsewhere:
        return write(tried[0], _PROMPT_TOKENS), []
    prompts = prompts_of(first, machine.tokenizer)
    longest = min(_PROMPT_TOKENS, 32 * (prompts.longest // 32 + 1))

    def draft(sizes: Sizes) -> Recipe:
        return _checked(write(sizes, longest), out, wanted.name)

    sizes, needs = choose_sizes(iter(tried), draft, machine.facts, prompts)
    seconds = needs.seconds(draft(sizes))
    taken = f"estimated: {size_text(needs.memory)} of {'memory' if needs.has is None else size_text(needs.has)}"
    if seconds is not None and needs.step is not None:
        taken += f", {span(needs.step)} a step, {span(seconds)} in all"
    return write(sizes, longest), [taken]


def _exists(out: Path) -> bool:
    try:
        return out.exists()
    except OSError as error:
        raise _unwritable(out, error) from None


def _unwritable(out: Path, error: OSError) -> RecipeError:
    move = f"a shorter NAME than these {len(out.stem)} characters" if error.errno == ENAMETOOLONG else "another NAME"
    return RecipeError(f"{brief(str(out))} cannot be written ({error.strerror}); give {move}")


def _checked(text: str, out: Path, name: str) -> Recipe:
    """Return the recipe of a text; refuse it in the words of the command line.

    Raises:
        RecipeError: it would be refused.
    """
    try:
        loaded = recipe_from_dict(parse_yaml(text, str(out))[0], [f"run.name={name}"], path=out)  # a run's name
    except RecipeError as error:
        said = str(error)
        for key, typed in _TYPED.items():
            said = re.sub(rf"^  {re.escape(key)}(?=:|$)", f"  {typed} ({key})", said, flags=re.MULTILINE)
        raise RecipeError(said) from None
    return loaded.recipe


def _look_at(wanted: Wanted, path: str) -> _Data:
    records = list(islice(read_records(path), _LOOKED_AT))
    if not records:
        raise DataError(f"{path} holds no record")
    names = list(records[0][1])
    fields = {ours: theirs for ours, theirs in (("problem", wanted.problem), ("answer", wanted.answer)) if theirs}
    unknown = [name for name in fields.values() if name.split(".")[0] not in names]
    if unknown:
        raise DataError(f"{path} has no column {unknown[0]!r}; it has {', '.join(names)}")
    answers = Answers.PASSED_ON if ":" in (wanted.reward or "") else Answers.COMPARED
    unanswered: list[str] = []
    try:
        problems = list(to_problems(records, "plain" if fields else "auto", fields, unanswered, answers))
    except DataError as error:
        if "`fields: " not in str(error):
            raise
        raise DataError(
            f"{path} has the columns {', '.join(names)}: say which one is the problem and which one the answer with "
            f"--problem COLUMN --answer COLUMN ({error})"
        ) from None
    if not problems:
        raise DataError(
            f"none of the first {len(records)} records of {path} has an answer, the first: {unanswered[0]}. Name "
            "another column (--answer COLUMN), or a reward of yours (--reward package.module:function)"
        )
    return _Data(fields, problems)


@dataclass(frozen=True, slots=True)
class _Machine:
    cuda: bool
    said: str
    facts: ModelFacts | None = None  # None: the model is not here
    tokenizer: Any = None
    elsewhere: bool = False  # the recipe is for a GPU, and here is none

    @property
    def parameters(self) -> int | None:
        return None if self.facts is None else self.facts.parameters

    @property
    def chats(self) -> bool:
        """Whether the model has a chat template, or is not here."""
        return self.tokenizer is None or bool(getattr(self.tokenizer, "chat_template", None))


def _machine(wanted: Wanted) -> _Machine:
    import torch

    here = torch.cuda.is_available()
    cuda = here if wanted.device in (None, "auto") else str(wanted.device).startswith("cuda")
    said = "settings for a GPU" if cuda else "no GPU found: settings for a CPU"
    if cuda and here:
        properties = torch.cuda.get_device_properties(0)
        said = f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB"
    if not _is_here(wanted):
        return _Machine(
            cuda, f"{said}; the model is not here, so sizes are not fitted to it", elsewhere=cuda and not here
        )
    from dapo.cli.check_memory import load_tokenizer_and_facts

    tokenizer, facts = load_tokenizer_and_facts(Recipe.model_validate({"model": {"path": wanted.model}, "data": _ANY}))
    said += f"; the model has {facts.parameters / 1e6:,.1f} million parameters"
    return _Machine(cuda, said, facts, tokenizer, cuda and not here)


def _is_here(wanted: Wanted) -> bool:
    """Return whether the model can be read without a network.

    Raises:
        ModelError: it is a folder that does not exist.
    """
    from dapo.models.gguf_file import is_gguf

    if wanted.builtin or is_gguf(wanted.model) or Path(wanted.model).is_dir():
        return True
    if wanted.model.startswith(("/", "./", "../", "~")):
        raise ModelError(f"there is no model folder {wanted.model}")
    return False


def _text(
    wanted: Wanted, data: _Data, held_out: _Data | None, form: Form, machine: _Machine, sizes: Sizes, prompt: int
) -> str:
    limit = wanted.max_tokens or form.tokens or (1024 if machine.cuda else 256)
    positions = None if machine.facts is None else machine.facts.positions
    if positions is not None and prompt + limit > positions:
        prompt = max(1, min(prompt, positions // 2))
        limit = min(limit, positions - prompt)
    lines = [
        f"# {wanted.name}: {wanted.model} on {wanted.train}. Written by `dapo init`; look at it with",
        f"# `dapo check {wanted.name}.yaml`, then `dapo train {wanted.name}.yaml`. `dapo explain KEY` explains a key.",
        "preset: dapo                      # clip-higher, dynamic sampling, token-level loss, overlong shaping",
        *_model_lines(wanted, machine, sizes),
        *_data_lines(wanted, data, held_out, form),
        f"  max_prompt_tokens: {prompt}         # longer prompts are dropped, and counted",
        "",
        "rewards:",
        "  - name: accuracy                # one reward must be called so; dynamic sampling and evaluation read it",
        *_reward(form.reward, wanted.builtin),
        "",
        "rollout:",
        f"  prompts_per_step: {sizes.prompts}            # P: more is steadier, and slower",
        f"  group_size: {sizes.group}                   # G: responses per problem; more finds rare right answers",
        f"  max_response_tokens: {limit}       # a response that reaches it is truncated",
    ]
    if form.temperature != 1.0:
        lines += [f"  temperature: {form.temperature}    # a small model keeps the form of long problems only below 1"]
    if form.template is not None:
        lines += ['  stop: ["\\n\\n"]                  # a blank line ends a response: the model has no token for that']
    if machine.cuda:
        lines += ["  # engine: vllm  # faster for long responses; needs the package vllm: docs/engines.md"]
    lines += [
        "",
        "algorithm:",
        "  overlong_punishment:",
        f"    cache_length: {max(1, limit // 4)}      # the last tokens before the limit cost reward",
    ]
    if sizes.high is not None:
        lines += [
            "  clip:",
            f"    high: {sizes.high}           # a small model's entropy falls fast: leave rare tokens more room",
        ]
    lines += [
        "",
        "learner:",
        f"  learning_rate: {_rate(sizes.rate)}           # by the model's size; try a third and three times of it",
        f"  minibatch_prompts: {max(1, sizes.prompts // 2)}            # groups of an optimiser step: two a step",
        f"  microbatch_tokens: {sizes.microbatch}   # of one pass: fewer take less memory",
        f"  warmup: {min(10, -(-sizes.steps // 15))}    # training steps until the whole rate is taken",
        "",
        "validation:",
        "  every: 10                       # training steps between evaluations",
        "  samples: 2                      # responses per held-out problem, and a greedy one",
        f"  limit: {sizes.limit}            # held-out problems of an evaluation",
        *([f"  temperature: {form.temperature}    # as in training"] if form.temperature != 1.0 else []),
        "",
        "trainer:",
        f"  steps: {sizes.steps}",
    ]
    return "\n".join(map(_aligned, lines)) + "\n"


def _rate(rate: float) -> str:
    return to_yaml([rate]).strip().removeprefix("- ") if rate < 1e-4 else f"{rate * 1e4:.1f}e-4"


def _model_lines(wanted: Wanted, machine: _Machine, sizes: Sizes) -> list[str]:
    from dapo.system import core_count

    lines = ["", "model:", f"  path: {_one(wanted.model)}      # a Hugging Face folder, hub name or GGUF file"]
    if sizes.dtype == "bfloat16":
        lines += ["  dtype: bfloat16     # of the weights while training; the optimiser keeps float32"]
    if machine.cuda or sizes.adapter:
        lines += ["  activation_checkpointing: full  # less memory, about a third more time in the backward pass"]
    if sizes.adapter:
        lines += ["  lora: {rank: 16}    # an adapter: all weights with their optimiser do not fit into the memory"]
    device = wanted.device if wanted.device not in (None, "auto") else None if machine.cuda else "cpu"
    lines += [] if device is None else [f"  device: {device}"]
    if not machine.cuda and not wanted.builtin and core_count() > 1:
        lines += ["", "run:", f"  threads: {core_count()}      # this machine's cores; fewer where others use them"]
    return lines


def _data_lines(wanted: Wanted, data: _Data, held_out: _Data | None, form: Form) -> list[str]:
    lines = ["", "data:", "  train:", *_source(wanted.train, data.fields)]
    if wanted.validation is not None and held_out is not None:
        lines += [
            "  validation:                     # held out: accuracy is measured on it",
            *_source(wanted.validation, held_out.fields),
        ]
    else:
        lines += [
            "  # validation:                   # give a held-out file, or the run cannot say whether it learned:",
            "  #   - path: test.jsonl",
        ]
    if form.template is not None:
        lines += [f"  prompt_template: {_one(form.template)}    # the model has no chat template"]
    if form.instruction is not None:
        lines += [f"  instruction: {_one(form.instruction)}   # appended to every problem"]
    if form.examples:
        lines += ["  few_shot:                       # in every prompt: shows the form of an answer; not trained on"]
    for problem, response in form.examples:
        lines += [f"    - problem: {_one(problem)}", f"      response: {_one(response)}"]
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
        lines.append(f"      {fields_line(fields)}    # our name: the name in your file")
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
