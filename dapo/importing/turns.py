"""Several turns, tools and environments of other trainers: their limits become lines, their code cannot."""

from __future__ import annotations

import re
from typing import Any

from dapo.importing.arithmetic import shown
from dapo.importing.reading import Apart, Reading

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
_TAKEN = re.compile(r"\b(environment_factory|env_class)\b")  # classes that are played as they are
_TOOLS = re.compile(r"tools?\b|tool_|_tool|code_interpreter")
_FORMAT = re.compile(r"(.*\.)?(tool_call_parser|multi_turn\.format)")
_PARSERS = {
    "hermes": "hermes",
    "qwen": "hermes",
    "qwen25": "hermes",
    "llama3_json": "llama3",
    "llama3": "llama3",
    "mistral": "mistral",
    "pythonic": "python",
}
_OFF = (None, False, 0, "", "none", "null", "false", "None")
_MOST_NAMED = 3


def convert_turns(r: Reading) -> None:
    """Write the section ``environment`` of a source that trains several turns, and say what no importer can bring."""
    settings = {key: given.value for key, given in r.source.settings.items()}
    needed = {key: value for key, value in settings.items() if _needs_more(key, value, settings)}
    found = [f"{key} = {shown(value)}" for key, value in needed.items()]
    found += [what for what, _ in r.source.unresolved if _SWITCHES.fullmatch(re.split(r"[ =]", what)[0])]
    if not found:
        return
    uses_tools = any(_TOOLS.search(what.partition("=")[0]) or "tool_agent" in what for what in found)
    if uses_tools:
        r.put("environment.kind", "tools", note="FILL IN the tools: typed functions of yours (docs/howto_tools.md)")
        r.put("environment.tools", ["my_tools:FILL_IN"], note="FILL IN")
    else:
        yours = "FILL IN: an environment of yours (docs/environments.md)"
        if _TAKEN.search(" ".join(found)):
            yours = f"FILL IN: {r.title}'s class as it is, module:Class (docs/howto_environments.md)"
        r.put("environment.kind", "my_environment:FILL_IN", note=yours)
    for key, value in needed.items():
        _write(r, key, value)
    for key, value in settings.items():
        name = _PARSERS.get(str(value).lower()) if _FORMAT.fullmatch(key) else None
        if name is not None and uses_tools:
            r.put("environment.tool_format", name, r.find(key))
    more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    r.cautions.append(
        f"this recipe needs an environment or tools of yours, since no importer can bring code along: fill in "
        f"`environment`; {r.title} trains with {', '.join(found[:_MOST_NAMED])}{more}"
    )


def _write(r: Reading, key: str, value: Any) -> None:
    """Write one setting of turns as a line, or list it."""
    count = value if isinstance(value, int) and not isinstance(value, bool) else None
    if count is not None and _TURNS.fullmatch(key) and "user" not in key:
        r.put("environment.max_turns", count, r.find(key))
    elif count is not None and _CALLS.fullmatch(key):
        r.put("environment.max_turns", count + 1, r.find(key), note="calls, and the answer after them")
    elif _plain_switch(key) and not _FORMAT.fullmatch(key):
        r.used.add(key)
        r.apart.append(Apart(f"{key} = {shown(value)}", "code of an environment or of tools: fill in `environment`"))


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
