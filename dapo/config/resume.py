"""Which settings may change when a run is resumed.

``free``: changes nothing of what training computes from here on, or only when it stops. ``ask``: changes the course of
the run, so it is taken only when an override asks for it, and it is said. ``fixed``: the checkpoint's state means
something else without it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from dapo.config.files import RESOLVED
from dapo.config.load import LoadedRecipe, load_recipe, split_overrides
from dapo.config.presets import preset_settings
from dapo.config.problems import brief
from dapo.config.schema import Recipe
from dapo.config.secrets import redact
from dapo.config.settings import generic, settings
from dapo.config.staleness import followers
from dapo.errors import CheckpointError, RecipeError

Rule = Literal["free", "ask", "fixed"]
_SOURCE_FIXED = "name split format fields task options seed size weight levels"

_LISTS = ("data.train", "data.validation", "data.few_shot", "sft.train", "sft.validation")

_RULES: dict[str, dict[Rule, str]] = {
    "": {"fixed": "preset"},
    "run": {"free": "if_exists reward_workers reward_memory_mib", "ask": "threads", "fixed": "dir name stage seed"},
    "model": {
        "free": "activation_checkpointing",
        "ask": "device trust_remote_code attention fp32_head matmul_precision",
        "fixed": "path dtype",
    },
    "model.lora": {"fixed": "rank lora_alpha target_modules use_rslora modules_to_save lora_dropout"},
    # What decides which prompts there are, and in which order, gives the saved position in the stream its meaning.
    "data": {
        "free": "epochs",
        "fixed": "prompt prompt_template chat_template chat_template_kwargs tools tools_field response_prefix "
        "system_prompt instruction max_prompt_tokens overlong_prompts shuffle",
    },
    "data.thinking": {"ask": "enabled open close"},
    "data.few_shot.N": {"fixed": "problem response"},
    "data.train.N": {"ask": "path", "fixed": _SOURCE_FIXED},
    "data.validation.N": {"ask": "path", "fixed": _SOURCE_FIXED},
    "data.curriculum": {"ask": "raise_at lower_at window"},
    "rewards.N": {"free": "timeout", "ask": "kind function pattern reads weight sources", "fixed": "name"},
    "rollout": {
        "ask": "engine prompts_per_step max_response_tokens temperature top_p top_k stop_token_ids stop "
        "include_stop_str_in_output thinking_budget thinking_end slots "
        "engines turn_steps lockstep max_staleness overlap_turns recompute_cache",
        "free": "weight_transfer",
        "fixed": "group_size",  # carried groups have it
    },
    "rollout.embedded": {"ask": "cuda_graphs"},
    "rollout.vllm": {
        "free": "gpu_memory_utilization kv_cache_mib tensor_parallel_size enforce_eager sleep",
        "ask": "dtype engine_args",
    },
    "rollout.server": {"free": "url weights_dir patience api_key_variable"},
    "algorithm": {
        "ask": "overlong_filtering truncated_vote shaping old_logprobs kl_coefficient kl_estimator kl_in_reward "
        "entropy_coefficient"
    },
    "algorithm.reference": {"free": "offload", "fixed": "refresh_every"},
    "algorithm.entropy_control": {"ask": "target delta min max"},
    "algorithm.clip": {"ask": "low high dual"},
    "algorithm.loss": {
        "ask": "kind ratio reduction constant_length micro_batch_sequences micro_batch_weighted cispo_cap cispo_floor "
        "sapo_positive sapo_negative cov_share cov_above cov_below cov_coefficient"
    },
    "algorithm.advantage": {"ask": "kind baseline scale ddof eps"},
    "algorithm.dynamic_sampling": {
        "free": "max_groups max_tokens on_cap",
        "ask": "mode min_replace_ratio metric keep correct_at tolerance band oversample lookahead surplus unfinished "
        "max_age on_max_age retire_at review_share easy_at easy_share hard_at hard_share "
        "greso greso_target verdict_lag",
    },
    "algorithm.overlong_punishment": {"ask": "enabled max_length cache_length factor"},
    "algorithm.reward_scaling": {"ask": "enabled source_min source_max target_min target_max"},
    "algorithm.correction": {"ask": "kind cap floor token_cap sequence_cap"},
    "learner": {
        "free": "microbatch_tokens max_skipped_steps ranks replicas reshard_after_forward cpu_offload timeout",
        "ask": "learning_rate betas eps weight_decay schedule schedule_unit warmup final_ratio minibatch_prompts "
        "max_grad_norm deterministic",
    },
    "validation": {"free": "every samples greedy temperature top_p max_response_tokens limit"},
    "sft": {
        "free": "epochs steps every export",
        "ask": "batch_size learning_rate schedule warmup final_ratio",
        "fixed": "max_tokens overlong loss_on",
    },
    "sft.train.N": {"ask": "path", "fixed": "name split fields size"},
    "sft.validation.N": {"ask": "path", "fixed": "name split fields size"},
    "trainer": {"free": "steps max_hours sync_check_tolerance"},
    "trainer.early_stop": {"free": "metric best_is patience min_change"},
    "checkpoint": {"free": "every keep seconds best best_is asynchronous", "fixed": "dir"},
    "logging": {
        "free": "rollouts rollouts_sample tokens spans console samples_every tensorboard wandb trackers project"
    },
    "launch": {"free": "backend"},
    "cluster": {
        "free": "address nodes gpus_per_node colocate cpus_per_host start_timeout engine_timeout max_engine_restarts "
        "max_learner_restarts"
    },
    "slurm": {
        "free": "nodes partition account qos constraint time gpus_per_node cpus_per_node setup container "
        "signal_seconds requeue extra"
    },
}


@dataclass(frozen=True, slots=True)
class Change:
    """One setting that a resumed run has otherwise than before."""

    path: str
    old: Any
    new: Any
    rule: Rule

    def sentence(self) -> str:
        """``trainer.steps: 60 -> 100 (free)``."""
        return f"{self.path}: {brief(self.old)} -> {brief(self.new)} ({self.rule})"


@cache
def rules() -> dict[str, Rule]:
    """The rule of every setting by its path, list items as ``N``."""
    return {
        f"{section}.{name}" if section else name: rule
        for section, by_rule in _RULES.items()
        for rule, names in by_rule.items()
        for name in names.split()
    }


def rule_of(path: str) -> Rule:
    """The rule of a concrete path. Adding or removing a reward is ``ask``, a data source ``fixed``."""
    path = generic(path)
    if path == "rewards":
        return "ask"
    return "fixed" if path in _LISTS else rules()[path]


def check_resume(old: Recipe, new: Recipe, overrides: Sequence[str] = ()) -> list[Change]:
    """What a resumed run would change, if it may.

    Args:
        old: the recipe the run was started (or last resumed) with.
        new: the recipe to go on with.
        overrides: ``key=value`` as given with ``--resume``; an ``ask`` setting may only change if named there.

    Raises:
        RecipeError: a ``fixed`` setting differs, or an ``ask`` setting that nobody asked for. Every such setting is
            listed with its rule.
    """
    asked = [o.partition("=")[0].strip() for o in overrides]
    changes: list[Change] = []
    refused: list[str] = []
    for path, *values in _differences(old, new):
        before, after = (redact(value, path) for value in values)
        if before == after:
            continue  # a secret that was given again
        change = Change(path, before, after, rule_of(path))
        named = any(path == key or path.startswith(f"{key}.") or key.startswith(f"{path}.") for key in asked)
        if change.rule == "fixed":
            refused.append(f"  {change.sentence()}\n    {_why_fixed(path)}")
        elif change.rule == "ask" and not named:
            refused.append(
                f"  {change.sentence()}\n    allowed when asked for: add {path}={brief(after)} to the command"
            )
        else:
            changes.append(change)
    if refused:
        others = [c.sentence() for c in changes]
        tail = f"\nallowed to change: {'; '.join(others)}" if others else ""
        raise RecipeError("the run cannot be resumed with these settings:\n" + "\n".join(refused) + tail)
    return changes


def changed_since(saved: Mapping[str, Any], new: Recipe) -> list[Change]:
    """Where a recipe differs from the one that a checkpoint was saved with, given as plain values.

    ``ask`` settings are taken, and told: the run may have been resumed with them since the checkpoint.

    Raises:
        RecipeError: a ``fixed`` setting differs: somebody edited recipe.resolved.yaml.
    """
    try:
        old = Recipe.model_validate(saved)
    except ValidationError:
        return []  # of a version with other settings, whose checkpoints cannot be compared in this way
    found = [(path, redact(b, path), redact(a, path)) for path, b, a in _differences(old, new)]
    changes = [Change(path, b, a, rule_of(path)) for path, b, a in found if b != a]
    if fixed := [f"  {c.sentence()}\n    {_why_fixed(c.path)}" for c in changes if c.rule == "fixed"]:
        told = "\n".join(fixed)
        raise RecipeError(f"{RESOLVED} is not the recipe that the checkpoint was saved with; mend it:\n{told}")
    return changes


def no_run(folder: str | Path) -> str:
    """What to say of a path that is no run folder: why it is none, and which there are in ``runs``."""
    why = f"it holds no {RESOLVED}" if Path(folder).exists() else "there is nothing of that name"
    runs = sorted(p.parent for p in Path("runs").glob(f"*/{RESOLVED}"))
    there = f"; there are {', '.join(map(str, runs[:8]))}" if runs else ""
    return f"{folder} is not a run folder: {why}{there}"


def load_for_resume(run_folder: str | Path, overrides: Sequence[str] = ()) -> tuple[LoadedRecipe, list[Change]]:
    """Return the recipe of a run folder with overrides on top, and what they change.

    Settings that followed ``rollout.max_staleness`` follow its new value, unless an override names them.

    Raises:
        CheckpointError: the folder holds no run.
        RecipeError: the overrides are not valid or may not change on resume.
    """
    file = Path(run_folder) / RESOLVED
    if not file.is_file():
        raise CheckpointError(no_run(run_folder))
    old = load_recipe(file, of_a_run=True)
    overrides = [*_following(old.recipe, overrides), *overrides]
    new = load_recipe(file, overrides)
    return new, check_resume(old.recipe, new.recipe, overrides)


def _following(old: Recipe, overrides: Sequence[str]) -> list[str]:
    """Return the overrides that an override of ``rollout.max_staleness`` implies."""
    given = dict(split_overrides(overrides))
    try:
        limit = int(given["rollout.max_staleness"])
    except (KeyError, ValueError):  # not changed, or refused when it is read
        return []
    if limit < 0:
        return []
    found = followers(old, preset_settings(old.preset), limit)
    return [f"{path}={json.dumps(value)}" for path, value in found.items() if path not in given]


def _why_fixed(path: str) -> str:
    if path == "preset":
        return "fixed: a preset fills in what a new recipe leaves out; on resume, set the settings themselves"
    if path == "checkpoint.dir":
        return (
            "fixed: to move the checkpoints, move their folder and let the link RUN/checkpoints lead to its new place"
        )
    if path.startswith("run."):
        return "fixed: a run goes on where it was, with its own random numbers; start a new run for another"
    if path.startswith(("data.", "sft.")):
        return "fixed: the saved position in the prompt stream is only right for the same prompts; start a new run"
    return "fixed: the saved state is only right for the same value; start a new run (from an exported model, say)"


def _differences(old: BaseModel, new: BaseModel, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    for name in type(old).model_fields:
        before, after, path = getattr(old, name), getattr(new, name), f"{prefix}{name}"
        if isinstance(before, BaseModel) and isinstance(after, BaseModel):
            yield from _differences(before, after, f"{path}.")
        elif f"{generic(path)}.N" in _RULES and len(before) == len(after):
            for n, (b, a) in enumerate(zip(before, after, strict=True)):
                yield from _differences(b, a, f"{path}.{n}.")
        elif before != after:
            yield path, _plain(before), _plain(after)


def _plain(value: Any) -> Any:
    items = value if isinstance(value, list) else []
    return (
        [v.model_dump(mode="json", exclude_defaults=True) for v in items]
        if items and isinstance(items[0], BaseModel)
        else value
    )


def unclassified() -> list[str]:
    """Settings without a rule; a test wants none."""
    return [s.path for s in settings().values() if not s.section and s.path not in rules()]
