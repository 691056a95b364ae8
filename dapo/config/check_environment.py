"""Checks of the section ``environment``, and of what other sections say about an episode."""

from __future__ import annotations

from dapo.config.faults import Broken
from dapo.config.schema import Recipe


def check_environment(r: Recipe) -> Broken:
    """Episodes have an environment, and nothing else speaks of them without one."""
    environment = r.environment
    yield from _rewards(r)
    if environment.kind is None or r.run.stage == "sft":
        return
    if environment.kind == "tools" and not environment.tools:
        yield "environment.tools", "kind: tools needs at least one function, such as my_tools:add"
    if environment.kind == "agent" and not environment.run:
        yield "environment.run", "kind: agent needs a function, such as my_agent:solve, or a command"
    if environment.kind == "agent" and environment.on_error == "tell":
        yield "environment.on_error", "an agent that failed is over and reads no message; use unscored or end"
    if (environment.id is None) == (environment.kind == "verifiers"):
        yield "environment.id", "names an environment of `verifiers`, and belongs to environment.kind: verifiers"
    if environment.kind == "openenv":
        yield (
            "environment.kind",
            "actions of OpenEnv servers are typed records, and no text of a model is one. Start the server, and name a "
            "class around its client whose methods are tools: module:Class (docs/howto_environments.md)",
        )
    if environment.kind == "verifiers" and environment.on_error == "tell":
        yield "environment.on_error", "what such an environment raises ends its episode; use unscored or end"
    if environment.tools and (r.data.tools or r.data.tools_field):
        key = "data.tools" if r.data.tools else "data.tools_field"
        yield key, "environment.tools gives the chat template its schemas; take one of them out"
    if environment.tool_format == "none" and environment.tools:
        yield "environment.tool_format", "reads no calls, and environment.tools are called; use auto"
    budget, turn, limit = r.data.thinking.budget, environment.max_turn_tokens, r.rollout.max_response_tokens
    if turn is not None and turn > limit:
        yield "environment.max_turn_tokens", f"is more than an episode has: rollout.max_response_tokens = {limit}"
    own_prompts = "environment.kind: agent" if environment.kind == "agent" else "environment.rows: turns"
    if (environment.kind == "agent" or environment.rows == "turns") and r.learner.router_replay == "sampler":
        why = f"with {own_prompts} a response has several prompts; use learner or off"
        yield "learner.router_replay", f"repeats the engine's routes of prompt and response, and {why}"
    if budget is not None and turn is not None and budget >= turn:
        yield "data.thinking.budget", f"leaves no token for an answer: environment.max_turn_tokens is {turn}"
    if r.data.response_prefix is not None:
        move = "take it out, or give a data.chat_template that writes it before each turn of the assistant"
        yield "data.response_prefix", f"begins one response, and an episode has several turns; {move}"


def _rewards(r: Recipe) -> Broken:
    """Rewards of an environment and of its turns."""
    plays = r.environment.kind is not None
    for n, reward in enumerate(r.rewards):
        if reward.kind == "environment" and not plays:
            yield f"rewards.{n}.kind", "takes the scores of an environment; set environment.kind"
        if reward.kind == "environment" and r.environment.kind == "tools":
            yield f"rewards.{n}.kind", "tools score nothing: judge the last turn (math, exact, function, ...)"
        if reward.reads in ("answer", "response") and plays:
            why = "an episode is read by `turn` (its last, after the thinking) or `episode` (all that the model wrote)"
            yield f"rewards.{n}.reads", why
