"""Checks of where problems come from and how responses are scored."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import PurePath
from typing import Any

from dapo.config.faults import Broken
from dapo.config.schema import Data, DataSource, Recipe, Reward
from dapo.metrics.names import name_problem, reward_name_problem

ENVIRONMENT = "environment"
"""The task that stands for the data set of the recipe's environment."""
_SUFFIXES = {".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet", ".arrow"}


def source_name(source: DataSource) -> str:
    """Return the name of a source in metrics and in ``rewards.N.sources``.

    As given, else the task's, else the file's without its suffix; a folder's; of a pattern what stands before its first
    wildcard (``train`` for ``data/train-*.parquet``), or the folder's before that (``data`` for ``data/*.jsonl``).
    """
    if source.name:
        return source.name
    if source.task:
        return source.task.rpartition("/")[2]
    if source.path and source.path.startswith("hub:"):
        return source.path.rpartition("/")[2].partition(":")[0]
    file = PurePath(source.path or "")
    for part in [file, *file.parents]:
        fixed = re.split(r"[*?\[]", part.name)[0]
        name = PurePath(fixed).stem if PurePath(fixed).suffix.lower() in _SUFFIXES else fixed
        if fixed != part.name:
            name = name.rstrip("-_. ")
        if name:
            return name
    return "data"


def check_rewards(r: Recipe) -> Broken:
    """Every response gets each reward once, one of them `accuracy`, and each reward has what its kind needs."""
    sources = {source_name(s) for s in [*r.data.train, *r.data.validation]}
    for source in sorted(sources):
        names = Counter(w.name for w in r.rewards if w.sources is None or source in w.sources)
        for name in (n for n, count in names.items() if count > 1):
            yield "rewards", f"{names[name]} rewards called `{name}` score `{source}`; give each its own name"
        if "accuracy" not in names and r.rewards:
            yield (
                "rewards",
                f"none that scores `{source}` is called `accuracy`, which the keep rule and evaluation read",
            )
    for n, reward in enumerate(r.rewards):
        key = f"rewards.{n}"
        wrong = reward_name_problem(reward.name)
        if wrong is not None:
            yield f"{key}.name", f"{wrong}; it becomes the metric reward/NAME, so choose another"
        if reward.kind == "function" and reward.function is None:
            yield f"{key}.function", "kind: function needs function: package.module:function"
        if reward.kind == "regex" and reward.pattern is None:
            yield f"{key}.pattern", "kind: regex needs a pattern, such as 'answer is (-?\\d+)'"
        if reward.pattern is not None:
            yield from _pattern(f"{key}.pattern", reward)
        if reward.per == "group" and (reward.kind not in ("function", "service") or reward.api == "classify"):
            what = f"kind: {reward.kind}" if reward.kind != "service" else "api: classify"
            yield f"{key}.per", f"{what} scores one response; a kind: function, or a service otherwise, sees its group"
        unknown = [s for s in reward.sources or [] if s not in sources]
        if unknown:
            known = ", ".join(sorted(sources))
            yield f"{key}.sources", f"no data source called {', '.join(unknown)}; there are {known}"


def _pattern(key: str, reward: Reward) -> Broken:
    pattern = reward.pattern or ""
    if reward.kind not in ("regex", "exact") and not (reward.kind == "service" and reward.api == "openai"):
        yield key, f"is only read with kind: regex or exact, or api: openai, not {reward.kind}"
        return
    try:
        groups = re.compile(pattern).groups
    except (re.error, OverflowError, RecursionError) as error:
        yield key, f"is not a regular expression: {error}"
        return
    if reward.kind != "regex" and groups < 1:
        what = "the answer" if reward.kind == "exact" else "the score"
        yield key, f"kind: {reward.kind} takes {what} from group 1: put it in parentheses"


def check_data(r: Recipe) -> Broken:
    """Yield problems of the data: sources need files or tasks with their own names, and the prompt must hold the
    problem."""
    for part in ("train", "validation"):
        for n, source in enumerate(getattr(r.data, part)):
            yield from _source(f"data.{part}.{n}", source)
            wrong = name_problem(source_name(source)) if source.path or source.task or source.name else None
            if wrong is not None:
                move = "it becomes part of metrics' keys, so choose another" if source.name else "give it a `name`"
                yield f"data.{part}.{n}.name", f"the source's name {wrong}; {move}"
        names = Counter(map(source_name, getattr(r.data, part)))
        for name in (n for n, count in names.items() if count > 1):
            number = next(i for i, s in enumerate(getattr(r.data, part)) if source_name(s) == name)
            yield (
                f"data.{part}",
                f"{names[name]} sources are called `{name}`; give each a `name` (data.{part}.{number}.name=...)",
            )
    if r.data.prompt_template is not None and "{problem}" not in r.data.prompt_template:
        yield "data.prompt_template", "has no {problem}: the problem would not be in the prompt"
    if r.data.prompt == "template" and r.data.prompt_template is None:
        yield "data.prompt_template", "prompt: template needs a text with {problem} in it"
    if r.data.prompt in ("chat", "raw") and r.data.prompt_template is not None:
        yield "data.prompt", f"{r.data.prompt} does not read prompt_template; use template or take it out"
    yield from _chat(r.data)
    yield from _thinking(r)
    yield from _mixture(r)
    yield from _twins(r)


CHAT_ONLY = ("system_prompt", "chat_template", "chat_template_kwargs", "tools", "tools_field")
"""Settings that only a chat template reads."""
_OURS = {
    "messages": "the record's",
    "tools": "data.tools",
    "add_generation_prompt": "always true here",
    "continue_final_message": "data.response_prefix begins the response",
    "chat_template": "data.chat_template",
    "tokenize": "always done here",
    "return_dict": "always done here",
    "documents": "not passed on here",
}


def _chat(data: Data) -> Broken:
    """Yield problems of a chat template's inputs besides the messages."""
    for name, instead in _OURS.items():
        if name in data.chat_template_kwargs:
            yield f"data.chat_template_kwargs.{name}", f"is no variable of your own: {instead}"
    if data.tools and data.tools_field is not None:
        yield "data.tools_field", "data.tools gives every problem the same ones; take one of them out"
    for n, tool in enumerate(data.tools):
        if wrong := tool_problem(tool):
            yield f"data.tools.{n}", wrong
    if data.prompt == "raw" and data.few_shot:
        yield "data.few_shot", "needs prompt: chat, or prompt: template, which says how an example looks"
    for n, shot in enumerate(data.few_shot):
        if not shot.problem.strip() or not shot.response.strip():
            yield f"data.few_shot.{n}", "an example has a problem and a response, and one of them is empty"
    if data.response_prefix == "":
        yield "data.response_prefix", "is empty: leave it out"


def _thinking(r: Recipe) -> Broken:
    """Yield problems of where the answer begins, and of how long thinking may be."""
    thinking, tags = r.data.thinking, (r.data.thinking.open, r.data.thinking.close)
    if thinking.enabled and (not all(map(str.strip, tags)) or tags[0] == tags[1]):
        yield "data.thinking", f"needs two different tags, found {tags[0]!r} and {tags[1]!r}"
    if thinking.budget is None:
        return
    if thinking.end is not None and thinking.close not in thinking.end:
        yield "data.thinking.end", f"does not hold {thinking.close!r}"
    for section in (r.rollout, r.validation):
        limit = section.max_response_tokens
        if limit is not None and thinking.budget >= limit:
            key = "rollout" if section is r.rollout else "validation"
            yield "data.thinking.budget", f"leaves no token for an answer: {key}.max_response_tokens is {limit}"
            break


def tool_problem(tool: Any) -> str | None:
    """Why it is no schema of a tool, as chat templates read them; None: it is one."""
    function = tool.get("function", tool) if isinstance(tool, dict) else None
    if isinstance(function, dict) and isinstance(function.get("name"), str):
        return None
    return "expected a schema such as {type: function, function: {name: ..., description: ..., parameters: {...}}}"


def _mixture(r: Recipe) -> Broken:
    """Weights and levels of training sources."""
    train, rule = r.data.train, r.data.curriculum
    weighed = [n for n, source in enumerate(train) if source.weight is not None]
    if weighed and len(weighed) < len(train):
        missing = next(n for n in range(len(train)) if n not in weighed)
        yield f"data.train.{missing}.weight", "other sources have a weight: give every one its own, or none"
    levelled = any(source.levels for source in train)
    if levelled and len(train) > 1 and not weighed:
        yield "data.train.0.weight", "a source with levels among others needs weights: its size says nothing"
    for n, source in enumerate(train):
        if len(source.levels) == 1:
            yield f"data.train.{n}.levels", "one level is none: name two or more, or use options"
    if levelled and rule.lower_at >= rule.raise_at:
        yield "data.curriculum.lower_at", f"is not below raise_at: {rule.raise_at:g}"
    selection = r.algorithm.dynamic_sampling.selection
    if levelled and selection.retire is not None:
        why = "with levels every prompt of one may retire before the next begins: leave it out"
        yield "algorithm.dynamic_sampling.selection.retire", why
    easy, hard = selection.easy, selection.hard
    if easy is not None and hard is not None and hard.at >= easy.at:
        yield "algorithm.dynamic_sampling.selection.hard.at", f"is not below selection.easy.at: {easy.at:g}"


def _source(key: str, source: DataSource) -> Broken:
    if (source.path is None) == (source.task is None):
        given = "both are given" if source.path else "neither is given"
        yield key, f"a source has either `path` or `task`; {given}"
    if source.task is not None and (source.fields or source.format != "auto"):
        yield key, "`fields` and `format` belong to a file, not to a procedural task"
    if source.task not in (None, "signed_sum", ENVIRONMENT) and not re.fullmatch(r"reasoning_gym/\w+", source.task):
        yield f"{key}.task", "expected `signed_sum`, `environment` or `reasoning_gym/NAME`"
    if source.task == ENVIRONMENT and (source.options or source.seed):
        yield key, "`options` and `seed` belong to a task that makes problems; the environment has a data set"
    if source.task == ENVIRONMENT and source.split not in ("train", "eval"):
        yield f"{key}.split", "an environment's own data set is `train` or `eval`"


def _twins(r: Recipe) -> Broken:
    made = [(s.task, tuple(sorted(map(str, s.options.items()))), s.seed, s.split) for s in r.data.train if s.task]
    for n, s in enumerate(r.data.validation):
        if s.task and (s.task, tuple(sorted(map(str, s.options.items()))), s.seed, s.split) in made:
            yield f"data.validation.{n}.seed", "makes the very problems of a training source; use another seed"
