"""Read ten decisive keys of a public configuration, without the importer: the oracle of ``tests.imports.compare``.

It looks for each key by its spelling and collects every value that the file gives it. Variables of scripts are expanded
by all texts that the file assigns. So a value of the importer is right if it is among those found here.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

KEYS = ("method", "group", "batch", "response", "rate", "kl", "clip_low", "clip_high", "filter", "penalty")
ACTOR = "actor_rollout_ref.actor"
SPELLED: dict[str, dict[str, tuple[str, ...]]] = {
    "verl": {
        "method": ("algorithm.adv_estimator",),
        "group": ("actor_rollout_ref.rollout.n",),
        "batch": ("data.train_batch_size",),
        "response": ("data.max_response_length",),
        "rate": (f"{ACTOR}.optim.lr",),
        "kl": (f"{ACTOR}.kl_loss_coef",),
        "kl_switch": (f"{ACTOR}.use_kl_loss",),
        "kl_in_reward": ("algorithm.use_kl_in_reward",),
        "kl_of_reward": ("algorithm.kl_ctrl.kl_coef",),
        "clip_low": (f"{ACTOR}.clip_ratio_low",),
        "clip_high": (f"{ACTOR}.clip_ratio_high",),
        "filter": ("algorithm.filter_groups.enable",),
        "penalty": (
            "reward_model.overlong_buffer.enable",
            "reward.reward_kwargs.overlong_buffer_cfg.enable",
            "reward_model.reward_kwargs.overlong_buffer_cfg.enable",
        ),
    },
    "nemo-rl": {
        "method": (),
        "group": ("grpo.num_generations_per_prompt",),
        "batch": ("grpo.num_prompts_per_step",),
        "response": ("policy.generation.max_new_tokens",),
        "rate": ("policy.optimizer.kwargs.lr",),
        "rate_megatron": ("policy.megatron_cfg.optimizer.lr",),
        "kl": ("loss_fn.reference_policy_kl_penalty",),
        "clip_low": ("loss_fn.ratio_clip_min",),
        "clip_high": ("loss_fn.ratio_clip_max",),
        "filter": ("grpo.use_dynamic_sampling",),
        "penalty": ("grpo.reward_shaping.enabled",),
    },
    "skyrl": {
        "method": ("trainer.algorithm.advantage_estimator",),
        "group": ("generator.n_samples_per_prompt",),
        "batch": ("trainer.train_batch_size",),
        "response": ("generator.sampling_params.max_generate_length",),
        "rate": ("trainer.policy.optimizer_config.lr",),
        "kl": ("trainer.algorithm.kl_loss_coef",),
        "kl_switch": ("trainer.algorithm.use_kl_loss",),
        "clip_low": ("trainer.algorithm.eps_clip_low",),
        "clip_high": ("trainer.algorithm.eps_clip_high",),
        "filter": ("trainer.algorithm.dynamic_sampling.type",),
        "penalty": ("trainer.algorithm.overlong_buffer_len", "trainer.algorithm.overlong_buffer.len"),
    },
    "areal": {
        "method": (),
        "group": ("gconfig.n_samples",),
        "batch": ("train_dataset.batch_size",),
        "response": ("gconfig.max_new_tokens",),
        "rate": ("actor.optimizer.lr",),
        "kl": ("actor.kl_ctl",),
        "clip_low": ("actor.eps_clip",),
        "clip_high": ("actor.eps_clip_higher",),
        "filter": ("actor.dynamic_sampling",),
        "penalty": ("actor.overlong_reward_penalty",),
    },
}
_FLAGS = {
    "group": ("num_generations",),
    "response": ("max_completion_length",),
    "rate": ("learning_rate",),
    "kl": ("beta",),
    "clip_low": ("epsilon",),
    "clip_high": ("epsilon_high",),
    "penalty": ("reward_funcs",),
    "rows": ("per_device_train_batch_size", "micro_batch_size"),
    "accumulated": ("gradient_accumulation_steps",),
    "slices": ("steps_per_generation",),
    "whole": ("generation_batch_size",),
    "processes": ("NPROC_PER_NODE", "nproc_per_node", "num_processes"),
    "nodes": ("NNODES", "nnodes"),
    "global": ("global_batch_size",),
}
SPELLED["trl"] = {"method": (), "filter": (), **_FLAGS}
SPELLED["ms-swift"] = {
    **_FLAGS,
    "method": ("rlhf_type",),
    "filter": ("dynamic_sample",),
    "rate": ("learning_rate", "lr"),
}
IMAGES = (
    r"geo3k|geometry3k|clevr|[-_/]vl[-_/]|-vl\b|\d[._]?vl|vlm|llava|internvl|[-_]omni|minicpm.?o|audio|video.*parquet"
)


def read(path: Path, system: str) -> dict[str, list[Any]]:
    """Return the values that the file gives each key, as they are written there; a missing key has none."""
    text = path.read_text(encoding="utf-8")
    if path.suffix in (".yaml", ".yml"):
        flat = dict(_leaves(_merged(path)))
        if flat.get("grpo.reward_shaping.stop_properly_penalty_coef") is not None:  # it takes the penalty's place
            flat["grpo.reward_shaping.enabled"] = None
        found = {
            name: [flat[key] for key in keys if flat.get(key) is not None] for name, keys in SPELLED[system].items()
        }
    elif path.suffix == ".py":
        given = dict(_keywords(text))
        found = {name: [given[key] for key in keys if key in given] for name, keys in SPELLED[system].items()}
    else:
        found = _of_script(path, text, system)
    found["method"] = [_method(path, text, system, found["method"])]
    return {name: [_plain(value) for value in values] for name, values in found.items()}


def _of_script(path: Path, text: str, system: str) -> dict[str, list[Any]]:
    plain = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#")).replace("\\\n", " ")
    found = {name: [v for key in keys for v in _values(plain, key)] for name, keys in SPELLED[system].items()}
    called = re.search(r"(?m)^\s*(?:exec )?bash +(\S+\.sh)", plain)
    if called and system == "skyrl":  # a wrapper: what it does not give is the other script's
        other = next((root / called[1] for root in path.parents if (root / called[1]).is_file()), None)
        if other is not None:
            below = _of_script(other, other.read_text(encoding="utf-8"), system)
            found = {name: values or below[name] for name, values in found.items()}
    return found


def _values(text: str, key: str) -> Iterator[Any]:
    marks = r"--" if "." not in key and key.islower() else r"[+~]{0,2}"
    pattern = rf"(?<![\w.-]){marks}{re.escape(key)}(?:=| +)(\"[^\"]*\"|'[^']*'|[^\s;)]+)"
    for written in re.findall(pattern, text):
        yield from _expanded(written.strip("\"'"), text, 0)


def _expanded(written: str, text: str, depth: int) -> list[str]:
    """Return every text that a value with variables may stand for."""
    found = re.search(r"\$\{(\w+)(?::?[-=]([^{}]*))?\}|\$(\w+)|\$\(\((.*?)\)\)", written)
    if found is None or depth > 8:
        return [written]
    if found[4] is not None:
        inner = _expanded(re.sub(r"(?<![\w${])([A-Za-z_]\w*)", r"$\1", found[4]), text, depth + 1)
        stands = [str(_number(one)) for one in inner]
    else:
        name, other = found[1] or found[3], found[2]
        texts = re.findall(rf"(?<![\w$]){name}=(\"[^\"]*\"|'[^']*'|\$\(\(.*?\)\)|[^\s;)]+)", text)
        loops = re.findall(rf"\bfor {name} in ([^;\n]+)", text)
        stands = [t.strip("\"'") for t in texts] + [word for loop in loops for word in loop.split()]
        stands += [] if other is None else [other.strip("\"'")]
        stands = [t for t in stands if f"${{{name}" not in t] + [
            o for t in stands if f"${{{name}" in t for o in re.findall(rf"\$\{{{name}:?[-=]([^{{}}]*)\}}", t)
        ]
    before, after = written[: found.start()], written[found.end() :]
    return list(
        itertools.chain.from_iterable(
            _expanded(f"{before}{stand}{after}", text, depth + 1) for stand in dict.fromkeys(stands)
        )
    )


def _number(text: str) -> Any:
    return eval(text.replace("/", "//"), {"__builtins__": {}}) if re.fullmatch(r"[\d\s+*/()-]{1,60}", text) else text


def _merged(path: Path, depth: int = 0) -> dict[str, Any]:
    whole = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    names = whole.pop("defaults", None)
    below: dict[str, Any] = {}
    for name in names if isinstance(names, list) else [names]:
        if isinstance(name, str) and name != "_self_" and depth < 8:
            other = path.parent / (name if name.endswith((".yaml", ".yml")) else f"{name}.yaml")
            below = _over(below, _merged(other, depth + 1)) if other.is_file() else below
    return _over(below, whole)


def _over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    result = dict(below)
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = _over(result[key], value) if both else value
    return result


def _leaves(value: dict[str, Any], prefix: str = "", root: dict[str, Any] | None = None) -> Iterator[tuple[str, Any]]:
    root = value if root is None else root
    for key, below in value.items():
        name = f"{prefix}{key}"
        if isinstance(below, dict):
            yield from _leaves(below, f"{name}.", root)
        else:
            yield name, _reference(below, root, 0)


def _reference(value: Any, root: dict[str, Any], depth: int) -> Any:
    named = re.fullmatch(r"\$\{([\w.]+)\}", value) if isinstance(value, str) else None
    if named is None or depth > 8:
        return value
    here: Any = root
    for part in named[1].split("."):
        here = here.get(part) if isinstance(here, dict) else None
    return _reference(here, root, depth + 1)


def _keywords(text: str) -> Iterator[tuple[str, Any]]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("GRPOConfig"):
            for keyword in node.keywords:
                if isinstance(keyword.value, ast.Constant) and keyword.arg:
                    yield keyword.arg, keyword.value.value


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        word = value.strip("\"'")
        if word.lower() in ("true", "false"):
            return word.lower() == "true"
        try:
            number = float(word)
        except ValueError:
            return word
        return int(number) if number.is_integer() else number
    return value


def _method(path: Path, text: str, system: str, said: list[Any]) -> str:
    """Return ``grpo`` for what is relative to a group, else the name of the method that the file runs."""
    whole = f"{path.name}\n{text}".lower()
    if system == "nemo-rl":
        sections = [name for name in ("sft", "dpo", "ppo", "distillation", "rm", "grpo") if name in _merged(path)]
        if "grpo" not in sections:
            return sections[0] if sections else "none"
    if system == "areal" and not re.search(r"(?m)^gconfig:", text):
        return "other"
    if system == "areal" and re.search(r"(?m)^critic:", text):
        return "ppo"
    if system == "ms-swift" and said and said[-1] not in ("grpo",):
        return str(said[-1])
    if system in ("verl", "skyrl") and "gae" in map(str, said):
        return "ppo"
    if re.search(r"sft_trainer|main_sft|\bswift sft|\btrl sft|fsdp_sft", whole):
        return "sft"
    if "main_generate" in whole:
        return "generate"
    passed = re.compile(r"\s*#|.*(project|experiment|run)_name")
    plain = [line.partition(" #")[0] for line in whole.splitlines() if not passed.match(line)]
    named = [line for line in plain if re.search(r"path|model|dataset|data_|_file|train_data|env_name|geo3k", line)]
    return "images" if re.search(IMAGES, "\n".join([path.name.lower(), *named])) else "grpo"
