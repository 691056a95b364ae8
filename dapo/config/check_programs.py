"""Checks of rewards that run programs or ask a service, and of the sandbox."""

from __future__ import annotations

import string
from collections.abc import Iterator

from dapo.config.problems import Problem
from dapo.config.schema import Recipe, Reward, SandboxSection

_CODE = ("tests", "entry_point", "partial", "memory_mib")
_SERVICE = ("url", "api", "batch", "concurrency", "retries", "outage_limit", "api_key_variable")
_ASKED = ("model", "template", "options")  # of the forms that are not ours
_READ = {_CODE: "code", _SERVICE: "service", (*_ASKED, "parser"): "service", ("tolerance",): "last_number"}
_PYTHON = "python"  # of ``environment.tools``
PLACES = ("problem", "prompt", "response", "answer")
"""What a template may hold in braces."""


def check_programs(r: Recipe) -> Iterator[Problem]:
    """Check that settings of these kinds are read, and that those which they need are given."""
    for n, reward in enumerate(r.rewards):
        yield from _unread(f"rewards.{n}", reward)
        if reward.kind == "service":
            yield from _service(f"rewards.{n}", reward)
    programs = [n for n, reward in enumerate(r.rewards) if reward.kind == "code"]
    for n in programs:
        limit, memory = r.run.reward_memory_mib, r.rewards[n].memory_mib
        if limit is not None and memory > limit and r.sandbox.kind != "http":
            yield Problem(f"rewards.{n}.memory_mib", f"is more than run.reward_memory_mib ({limit}) allows", memory)
    yield from _sandbox(r.sandbox, bool(programs), _PYTHON in r.environment.tools)
    if _PYTHON in r.environment.tools:
        yield from _tool(r)


def _unread(key: str, reward: Reward) -> Iterator[Problem]:
    for names, kind in _READ.items():
        for name in names:
            if reward.kind != kind and _set(reward, name):
                yield Problem(f"{key}.{name}", f"is only read with kind: {kind}", getattr(reward, name))


def _service(key: str, reward: Reward) -> Iterator[Problem]:
    if reward.url is None:
        yield Problem(f"{key}.url", "kind: service needs a url, such as http://127.0.0.1:8000/score")
    if reward.api == "dapo":
        for name in _ASKED:
            if _set(reward, name):
                yield Problem(f"{key}.{name}", "is not read with api: dapo", getattr(reward, name))
    elif reward.model is None:
        yield Problem(f"{key}.model", f"api: {reward.api} needs the model's name at the service")
    if reward.api == "openai":
        if reward.template is None:
            yield Problem(f"{key}.template", "api: openai needs a text with {response} in it")
        if reward.parser is not None and reward.pattern is not None:
            yield Problem(f"{key}.parser", "reads the reply, and so does `pattern`: take one of them out")
        if _set(reward, "batch"):
            yield Problem(f"{key}.batch", "is not read with api: openai: a request has one question", reward.batch)
    elif reward.parser is not None:
        yield Problem(f"{key}.parser", "is only read with api: openai", reward.parser)
    if reward.template is not None:
        yield from _template(f"{key}.template", reward.template)


def _template(key: str, template: str) -> Iterator[Problem]:
    try:
        named = [name for _, name, _, _ in string.Formatter().parse(template) if name is not None]
    except ValueError as error:
        yield Problem(key, f"is no text with names in braces: {error}; write a brace of the text twice", template)
        return
    unknown = sorted(set(named) - set(PLACES))
    if unknown:
        known = ", ".join(f"{{{name}}}" for name in PLACES)
        yield Problem(key, f"holds {{{unknown[0]}}}; there are {known}; write a brace of the text twice", template)
    elif "response" not in named:
        yield Problem(key, "has no {response}: every response would get the same score", template)


def _tool(r: Recipe) -> Iterator[Problem]:
    """Check the limits of the tool ``python`` against those of the process that calls it."""
    limit, memory = r.environment.memory_mib, r.sandbox.memory_mib
    if limit is not None and memory > limit and r.sandbox.kind != "http":
        yield Problem("sandbox.memory_mib", f"is more than environment.memory_mib ({limit}) allows", memory)
    if r.sandbox.timeout >= r.environment.timeout:
        why = f"has to be less than environment.timeout ({r.environment.timeout:g}), after which the response is lost"
        yield Problem("sandbox.timeout", why, r.sandbox.timeout)


def _sandbox(sandbox: SandboxSection, judges: bool, calls: bool) -> Iterator[Problem]:
    if not judges and not calls and sandbox != SandboxSection():
        yield Problem("sandbox", "is only read with a reward of kind: code, or with environment.tools: [python]")
        return
    for name in ("timeout", "memory_mib"):
        if not calls and _set(sandbox, name):
            why = "is only read with environment.tools: [python]; a reward of kind: code has its own"
            yield Problem(f"sandbox.{name}", why, getattr(sandbox, name))
    if sandbox.kind == "http" and sandbox.url is None:
        yield Problem("sandbox.url", "kind: http needs a url")
    if sandbox.kind != "http":
        for name in ("url", "api_key_variable"):
            if _set(sandbox, name):
                yield Problem(f"sandbox.{name}", "is only read with kind: http", getattr(sandbox, name))
    if sandbox.kind != "local" and _set(sandbox, "require"):
        yield Problem("sandbox.require", "is only read with kind: local, which is tried", sandbox.require)


def _set(section: Reward | SandboxSection, name: str) -> bool:
    """Return whether a setting differs from its default."""
    return bool(getattr(section, name) != type(section).model_fields[name].get_default(call_default_factory=True))
