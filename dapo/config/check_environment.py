"""Checks of the section ``environment``, and of what other sections say about an episode."""

from __future__ import annotations

from collections.abc import Iterator

from dapo.config.problems import Problem
from dapo.config.schema import EnvironmentSection, Recipe


def check_environment(r: Recipe) -> Iterator[Problem]:
    """Episodes have an environment, and nothing else speaks of them without one."""
    environment = r.environment
    yield from _rewards(r)
    if environment.kind is None:
        for name in EnvironmentSection.model_fields:
            if (value := getattr(environment, name)) != EnvironmentSection.model_fields[name].get_default(
                call_default_factory=True
            ):
                yield Problem(f"environment.{name}", "is only read with environment.kind", value)
        return
    if r.run.stage == "sft":
        return
    if environment.kind == "tools" and not environment.tools:
        yield Problem("environment.tools", "kind: tools needs at least one function, such as my_tools:add", [])
    yield from _agent(environment)
    if environment.kind == "tools" and environment.args:
        yield Problem("environment.args", "are arguments of a function or class, and kind is tools", environment.args)
    if (environment.id is None) == (environment.kind == "verifiers"):
        why = "names an environment of `verifiers`, and belongs to environment.kind: verifiers"
        yield Problem("environment.id", why, environment.id)
    if environment.kind == "openenv":
        why = (
            "actions of OpenEnv servers are typed records, and no text of a model is one. Start the server, and name a "
        )
        why += "class around its client whose methods are tools: module:Class (docs/howto_environments.md)"
        yield Problem("environment.kind", why, environment.kind)
    if environment.kind == "verifiers":
        if environment.tools:
            yield Problem("environment.tools", "an environment of `verifiers` has tools of its own", environment.tools)
        if environment.on_error == "tell":
            yield Problem(
                "environment.on_error", "what such an environment raises ends its episode; use unscored or end"
            )
    if environment.tools and (r.data.tools or r.data.tools_field):
        key = "data.tools" if r.data.tools else "data.tools_field"
        yield Problem(key, "environment.tools gives the chat template its schemas; take one of them out")
    if environment.tool_format == "none" and environment.tools:
        yield Problem("environment.tool_format", "reads no calls, and environment.tools are called; use auto", "none")
    if environment.long_turn != "replied" and environment.max_turn_tokens is None:
        yield Problem("environment.long_turn", "is only read with environment.max_turn_tokens", environment.long_turn)
    limit = r.rollout.max_response_tokens
    if environment.max_turn_tokens is not None and environment.max_turn_tokens > limit:
        why = f"is more than an episode has: rollout.max_response_tokens = {limit}"
        yield Problem("environment.max_turn_tokens", why, environment.max_turn_tokens)
    own_prompts = "environment.kind: agent" if environment.kind == "agent" else "environment.rows: turns"
    if (environment.kind == "agent" or environment.rows == "turns") and r.learner.router_replay == "sampler":
        why = f"repeats the engine's routes of prompt and response, and with {own_prompts} a response has several "
        yield Problem("learner.router_replay", why + "prompts; use learner or off", "sampler")
    budget, turn = r.data.thinking.budget, environment.max_turn_tokens
    if budget is not None and turn is not None and budget >= turn:
        yield Problem(
            "data.thinking.budget", f"leaves no token for an answer: environment.max_turn_tokens is {turn}", budget
        )
    if r.data.response_prefix is not None:
        why = "begins one response, and an episode has several turns; take it out, or give a data.chat_template that "
        why += "writes it before each turn of the assistant"
        yield Problem("data.response_prefix", why, r.data.response_prefix)


def _agent(environment: EnvironmentSection) -> Iterator[Problem]:
    """Check that an agent has something to run, and tools of its own alone."""
    agent = environment.kind == "agent"
    if agent and not environment.run:
        yield Problem("environment.run", "kind: agent needs a function, such as my_agent:solve, or a command", None)
    if environment.other_sampling != "refuse" and not agent:
        why = "is only read with environment.kind: agent"
        yield Problem("environment.other_sampling", why, environment.other_sampling)
    if environment.run is not None and not agent:
        yield Problem("environment.run", "is only read with environment.kind: agent", environment.run)
    if agent and environment.tools:
        why = "kind: agent calls its own tools and names them in its requests; take them out"
        yield Problem("environment.tools", why, environment.tools)
    if agent and environment.on_error == "tell":
        why = "an agent that failed is over and reads no message; use unscored or end"
        yield Problem("environment.on_error", why, "tell")


def _rewards(r: Recipe) -> Iterator[Problem]:
    """Rewards of an environment and of its turns."""
    plays = r.environment.kind is not None
    for n, reward in enumerate(r.rewards):
        if reward.kind == "environment" and not plays:
            yield Problem(f"rewards.{n}.kind", "takes the scores of an environment; set environment.kind", reward.kind)
        if reward.kind == "environment" and r.environment.kind == "tools":
            yield Problem(f"rewards.{n}.kind", "tools score nothing: judge the last turn (math, exact, function, ...)")
        if reward.reads in ("turn", "episode") and not plays:
            why = "is only read with environment.kind: without one a response is one turn"
            yield Problem(f"rewards.{n}.reads", why, reward.reads)
        if reward.reads in ("answer", "response") and plays:
            why = "an episode is read by `turn` (its last, after the thinking) or `episode` (all that the model wrote)"
            yield Problem(f"rewards.{n}.reads", why, reward.reads)
        if reward.reads is not None and reward.kind == "environment":
            yield Problem(f"rewards.{n}.reads", "is not read with kind: environment", reward.reads)
