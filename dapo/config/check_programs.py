"""Checks of rewards that run programs or ask a service, and of the sandbox."""

from __future__ import annotations

import string

from dapo.config.faults import Broken
from dapo.config.schema import Recipe, Reward

PLACES = ("problem", "prompt", "answer")
"""What a template may hold in braces, beside ``response``, or ``responses`` with ``per: group``."""


def check_programs(r: Recipe) -> Broken:
    """Yield settings that such a reward or the tool ``python`` needs, and limits above those of what calls it."""
    here, limit = r.sandbox.kind != "http", r.run.reward_memory_mib
    calls = "python" in r.environment.tools
    for n, reward in enumerate(r.rewards):
        if reward.kind == "service":
            yield from _service(f"rewards.{n}", reward)
        if reward.kind == "code" and limit is not None and reward.memory_mib > limit and here:
            yield f"rewards.{n}.memory_mib", f"is more than run.reward_memory_mib ({limit}) allows"
    if not here and r.sandbox.url is None and (calls or any(reward.kind == "code" for reward in r.rewards)):
        yield "sandbox.url", "kind: http needs a url"
    limit, longest = r.environment.memory_mib, r.environment.timeout
    if calls and limit is not None and r.sandbox.memory_mib > limit and here:
        yield "sandbox.memory_mib", f"is more than environment.memory_mib ({limit}) allows"
    if calls and r.sandbox.timeout >= longest:
        why = f"has to be less than environment.timeout ({longest:g}), after which the response is lost"
        yield "sandbox.timeout", why


def _service(key: str, reward: Reward) -> Broken:
    if reward.url is None:
        yield f"{key}.url", "kind: service needs a url, such as http://127.0.0.1:8000/score"
    if reward.api != "dapo" and reward.model is None:
        yield f"{key}.model", f"api: {reward.api} needs the model's name at the service"
    if reward.api == "openai":
        if reward.template is None:
            yield f"{key}.template", f"api: openai needs a text with {{{_told(reward)}}} in it"
        if reward.parser is not None and reward.pattern is not None:
            yield f"{key}.parser", "reads the reply, and so does `pattern`: take one of them out"
    if reward.template is not None:
        yield from _template(f"{key}.template", reward.template, _told(reward))


def _told(reward: Reward) -> str:
    return "responses" if reward.per == "group" else "response"


def _template(key: str, template: str, told: str) -> Broken:
    try:
        named = [name for _, name, _, _ in string.Formatter().parse(template) if name is not None]
    except ValueError as error:
        yield key, f"is no text with names in braces: {error}; write a brace of the text twice"
        return
    unknown = sorted(set(named) - {told, *PLACES})
    if unknown:
        known = ", ".join(f"{{{name}}}" for name in (*PLACES, told))
        yield key, f"holds {{{unknown[0]}}}; there are {known}; write a brace of the text twice"
    elif told not in named:
        yield key, f"has no {{{told}}}: every response would get the same score"
