"""Several turns, tools and environments: what another trainer trains with them, no recipe of dapo trains."""

from __future__ import annotations

import re
from typing import Any

from dapo.importing.reading import Apart, Reading
from dapo.importing.values import shown

_TURNS = re.compile(r"(.*\.)?(max_(\w+_)?turns|num_turns)")
_CALLS = re.compile(r"(.*\.)?max_tool_calling_iterations")
_SWITCHES = re.compile(
    r"(.*\.)?(multi_turn_scheduler|use_gym_env|gym_env|context_manager|agent_template|tools|environment_factory|"
    r"rollout_func|tool_config_path|interaction_config_path|agent_loop_config_path|multi_turn\.enable|"
    r"should_use_nemo_gym|use_nemo_gym|step_wise_trajectories|tool_call_parser|openai\.mode)"
)
_WORDS = (
    (re.compile(r"(.*\.)?workflow"), r"multi.?turn|agent|tool|search|vision_multi"),
    (re.compile(r"(.*\.)?default_agent_loop"), r"^(?!single_turn_agent$)."),
    (re.compile(r"(.*\.)?env_class"), r"search|multi_turn|text2sql|sql|swe|terminal|browser|agent|tool"),
    (re.compile(r"(data\.(.*\.)?)?env_name"), r"nemo_gym|puzzle|retriev|code_interpreter|agent|tool"),
)
_ENVIRONMENTS = re.compile(r"env\.(nemo_gym|sliding_puzzle_game|sliding_puzzle|retriever|rag|code_interpreter)\b.*")
_OFF = (None, False, 0, "", "none", "null", "false", "None")
_MOST_NAMED = 3


def say_what_else_it_trains(r: Reading) -> None:
    """Put the settings that need several turns, tools or an environment into the recipe's first line."""
    settings = {key: given.value for key, given in r.source.settings.items()}
    found = [f"{key} = {shown(value)}" for key, value in settings.items() if _needs_more(key, value, settings)]
    for key in [key for key in settings if _plain_switch(key) and _needs_more(key, settings[key], settings)]:
        r.used.add(key)
        r.apart.append(
            Apart(f"{key} = {shown(settings[key])}", "several turns, tools or an environment: dapo has none")
        )
    found += [what for what, _ in r.source.unresolved if _SWITCHES.fullmatch(re.split(r"[ =]", what)[0])]
    if found:
        more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
        r.cautions.append(
            f"this recipe trains something else than {r.source.name}: one response to each prompt, without tools and "
            f"environments, which dapo does not have; {r.title} trains more with {', '.join(found[:_MOST_NAMED])}{more}"
        )


def _plain_switch(key: str) -> bool:
    return any(pattern.fullmatch(key) for pattern in (_TURNS, _CALLS, _SWITCHES))


def _needs_more(key: str, value: Any, settings: dict[str, Any]) -> bool:
    if value in _OFF or value == []:
        return False
    above = key.rpartition(".")[0]
    if str(settings.get(f"{above}.enable")).lower() == "false":  # a section that is switched off
        return False
    if _TURNS.fullmatch(key):
        return not isinstance(value, int | float) or value > 1
    if _plain_switch(key) or _ENVIRONMENTS.fullmatch(key):
        return True
    return any(pattern.fullmatch(key) and re.search(word, str(value), re.IGNORECASE) for pattern, word in _WORDS)
