"""Settings that have another name than before, so that the old name is refused with the new one."""

from __future__ import annotations

from dapo.config.settings import generic, kinds_at, options_of

_DS = "algorithm.dynamic_sampling"
_SELECTION = f"{_DS}.selection"
MOVED: dict[str, str] = {
    "algorithm.loss.cispo_cap": "algorithm.loss.cap",
    "algorithm.loss.cispo_floor": "algorithm.loss.floor",
    "algorithm.loss.constant_length": "algorithm.loss.reduction.length",
    "algorithm.loss.cov_above": "algorithm.loss.above",
    "algorithm.loss.cov_below": "algorithm.loss.below",
    "algorithm.loss.cov_coefficient": "algorithm.loss.coefficient",
    "algorithm.loss.cov_share": "algorithm.loss.share",
    "algorithm.loss.micro_batch_sequences": "algorithm.loss.reduction.sequences",
    "algorithm.loss.micro_batch_weighted": "algorithm.loss.reduction.weighted",
    "algorithm.loss.sapo_negative": "algorithm.loss.negative",
    "algorithm.loss.sapo_positive": "algorithm.loss.positive",
    f"{_DS}.min_replace_ratio": f"{_DS}.replace.min_ratio",
    f"{_DS}.max_groups": f"{_DS}.cap.groups",
    f"{_DS}.max_tokens": f"{_DS}.cap.tokens",
    f"{_DS}.on_cap": f"{_DS}.cap.then",
    f"{_DS}.retire_at": f"{_SELECTION}.retire.at",
    f"{_DS}.review_share": f"{_SELECTION}.retire.review",
    f"{_DS}.greso": f"{_SELECTION}.greso",
    f"{_DS}.greso_target": f"{_SELECTION}.greso.target",
    f"{_DS}.easy_at": f"{_SELECTION}.easy.at",
    f"{_DS}.easy_share": f"{_SELECTION}.easy.share",
    f"{_DS}.hard_at": f"{_SELECTION}.hard.at",
    f"{_DS}.hard_share": f"{_SELECTION}.hard.share",
    "model.lora.lora_dropout": "",
    "data.validation.N.weight": "",
    "data.validation.N.levels": "",
    "rollout.thinking_budget": "data.thinking.budget",
    "rollout.thinking_end": "data.thinking.end",
    "rollout.recompute_cache": "rollout.embedded.recompute_cache",
    "logging.tensorboard": "logging.trackers",
    "logging.wandb": "logging.trackers",
    "logging.project": "logging.trackers.N.project",
    "logging.rollouts_sample": "logging.rollouts",
    **{
        f"slurm.{name}": "slurm.options"
        for name in ("partition", "account", "qos", "constraint", "time", "gpus_per_node", "cpus_per_node", "extra")
    },
}
"""New key by old key; "" where the setting is gone."""

NOTES: dict[str, str] = {
    "data.validation.N.weight": "only training sources are mixed",
    "data.validation.N.levels": "only training sources change their level",
    "logging.tensorboard": "true is `[tensorboard]`",
    "logging.wandb": "a project is `[{kind: wandb, project: NAME}]`",
    "logging.rollouts_sample": "the number stands where `sample` stood",
    **{f"slurm.{name}": f"`{{{name}: ...}}`" for name in ("partition", "account", "qos", "constraint", "time")},
    "slurm.gpus_per_node": "`{gpus-per-node: ...}`",
    "slurm.cpus_per_node": "`{cpus-per-task: ...}`",
    "slurm.extra": "`--mem=0` is `{mem: 0}`, `--exclusive` is `{exclusive: true}`",
    f"{_DS}.greso": "true is `{target: 0.25}`, false is null",
    "model.lora.lora_dropout": "the sampler has no dropout, so the ratio would take the learner's for a change of the "
    "policy. For less overfitting lower model.lora.rank or learner.learning_rate",
}
"""By old key: how its value changes, or why the setting is gone."""


def moved_key(path: str) -> str | None:
    """Return the old key that a path means: the path itself, or its last part if one old key ends so; else None."""
    path = generic(path)
    ends = [old for old in MOVED if old == path or ("." not in path and old.endswith(f".{path}"))]
    return ends[0] if len(ends) == 1 else None


def moved_hint(old: str) -> str:
    """Return where an old key is now, in one sentence."""
    new, note = MOVED[old], NOTES.get(old)
    said = f"`{old}` is `{new}` now" if new else f"`{old}` is gone"
    section, _, name = new.rpartition(".")
    if kinds := [f"`{kind}`" for kind in kinds_at(section) if name in options_of(section, kind)]:
        said += f", an option of {section}.kind {', '.join(kinds)}"
    return f"{said}: {note}" if note else said
