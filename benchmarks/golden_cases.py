"""The runs of ``golden_matrix.py``: data alone, so that a renamed setting changes one line.

A list holds the overrides for both revisions. Where a setting has another name or value at the base revision, write
``{"head": [...], "base": [...]}`` instead: ``head`` is for the working tree, ``base`` for the revision given as BASE.
``{data}`` stands for the folder of the supervised examples.
"""

from __future__ import annotations

Overrides = list[str] | dict[str, list[str]]

COMMON: Overrides = [
    "run.reward_workers=1",
    "data.train.0.size=200",
    "rollout.prompts_per_step=4",
    "rollout.group_size=4",
    "rollout.max_response_tokens=24",
    "learner.learning_rate=2e-3",
    "learner.minibatch_prompts=1",  # several optimizer steps on one batch, so that ratios leave 1 and bounds act
    "learner.warmup=2",
    "validation.every=4",
    "validation.samples=1",
    "validation.limit=4",
    "checkpoint.every=2",
    "logging.console=quiet",
    "logging.rollouts=all",
]

LONGER: Overrides = ["trainer.steps=4"]
"""What the resume of `dapo train` changes: each case trains two steps, stops and goes on to the fourth."""

LONGER_SFT: Overrides = ["sft.steps=4"]

SFT: Overrides = [
    "sft.train.0.path={data}/examples.jsonl",
    "sft.validation.0.path={data}/held.jsonl",
    "sft.batch_size=8",
    "sft.learning_rate=2e-3",
    "sft.warmup=1",
    "sft.every=2",
    "sft.steps=2",
]

TRAIN: dict[str, Overrides] = {
    "quickstart": [],
    # Where the parts of a run are.
    "ranks": ["learner.ranks=2"],
    "engines": ["rollout.engines=2", "rollout.turn_steps=8"],
    "overlap": ["rollout.max_staleness=2", "rollout.overlap_turns=3", "rollout.turn_steps=8"],
    "everywhere": [
        "learner.ranks=2",
        "rollout.engines=2",
        "rollout.max_staleness=1",
        "rollout.overlap_turns=2",
        "rollout.turn_steps=8",
    ],
    "generate": ["rollout.engine=generate", "rollout.slots=8"],
    # What is trained.
    "warm_up": [
        "model.path=builtin/signed-sum-test",
        "data.train.0.options.max_terms=4",
        "data.validation.0.options.max_terms=4",
    ],
    "lora_kl_entropy": [
        "model.lora.rank=4",
        "learner.learning_rate=1e-2",
        "algorithm.kl_coefficient=0.05",
        "algorithm.reference.refresh_every=3",
        "algorithm.entropy_control.target=0.3",
        "algorithm.entropy_control.delta=0.01",
    ],
    "kl_in_reward": ["algorithm.kl_coefficient=0.05", "algorithm.kl_in_reward=true"],
    "bfloat16": ["model.dtype=bfloat16", "model.fp32_head=true"],
    # The loss.
    "dual_clip": [
        "algorithm.clip.low=0.1",
        "algorithm.clip.high=0.1",
        "algorithm.clip.dual=1.2",
        "algorithm.loss.reduction=prompt_mean",
    ],
    "gspo": ["preset=gspo"],
    "cispo": ["preset=cispo", "algorithm.loss.cap=1.1", "algorithm.loss.floor=0.9"],
    "sapo": ["preset=sapo"],
    "clip_cov": ["preset=clip-cov", "algorithm.loss.share=0.1", "algorithm.loss.above=0.0", "algorithm.loss.below=5.0"],
    "kl_cov": ["preset=kl-cov", "algorithm.loss.share=0.1"],
    "gdpo": [
        "preset=gdpo",
        "rewards.1.name=short",
        "rewards.1.kind=regex",
        "rewards.1.pattern=^.{0,30}$",
        "rewards.1.weight=0.5",
    ],
    "dr_grpo": ["preset=dr-grpo", "algorithm.entropy_coefficient=0.01"],
    "micro_batch_mean": [
        "algorithm.loss.reduction={kind: micro_batch_mean, sequences: 2}",
        "algorithm.advantage.baseline=leave_one_out",
        "algorithm.advantage.scale=batch_std",
    ],
    # What the ratio runs against.
    "old_sampler": ["algorithm.old_logprobs=sampler", "rollout.max_staleness=1", "rollout.overlap_turns=2"],
    "old_learner": ["algorithm.old_logprobs=learner", "rollout.temperature=1.2"],
    "old_interpolated": [
        "algorithm.old_logprobs=interpolated",
        "algorithm.correction.kind=mask_sequence",
        "rollout.max_staleness=2",
        "rollout.overlap_turns=3",
    ],
    "top_p": ["rollout.top_p=0.8", "algorithm.old_logprobs=learner", "algorithm.correction.kind=mask_token"],
    # Which groups train.
    "retirement_greso": [
        "data.train.0.size=16",
        "algorithm.dynamic_sampling.selection.greso.target=0.25",
        "algorithm.dynamic_sampling.selection.retire.at=0.75",
        "algorithm.dynamic_sampling.selection.retire.review=0.2",
    ],
    "shares": [
        "data.train.0.size=16",
        "algorithm.dynamic_sampling.selection.easy={at: 0.75, share: 0.3}",
        "algorithm.dynamic_sampling.selection.hard={at: 0.25, share: 0.3}",
    ],
    "replace": ["algorithm.dynamic_sampling.mode=replace"],
    "mask": ["algorithm.dynamic_sampling.mode=mask"],
    "fill": ["algorithm.dynamic_sampling.cap.groups=1", "algorithm.dynamic_sampling.cap.then=fill"],
    "rounds": [
        "algorithm.dynamic_sampling.oversample=2",
        "algorithm.dynamic_sampling.surplus=discard",
        "algorithm.dynamic_sampling.unfinished=drain",
    ],
    # What a response is, and what it earns.
    "workers": ["rewards.1.name=math", "rewards.1.kind=math", "rewards.1.weight=0", "run.reward_workers=2"],
    "thinking": ["data.thinking={enabled: true, open: '?', close: '-1', budget: 6, end: '-1'}"],
    "overlong": [
        "rollout.max_response_tokens=12",
        "algorithm.overlong_punishment.cache_length=8",
        "algorithm.overlong_punishment.factor=0.5",
        "algorithm.overlong_filtering=false",
    ],
}

SUPERVISED: dict[str, Overrides] = {
    "sft": [],
    "sft_lora_ranks": ["model.lora.rank=4", "learner.ranks=2"],
}

RENAMED_METRICS: dict[str, str | None] = {}
"""Keys of metrics.jsonl at the base revision to their keys in the working tree; None: no longer written."""

NEW_METRICS: frozenset[str] = frozenset()
"""Keys of metrics.jsonl that only the working tree writes."""

RENAMED_COLUMNS: dict[str, str | None] = {}
"""Columns of rollouts/*.parquet, likewise."""

NEW_COLUMNS: frozenset[str] = frozenset()

RENAMED_LOOKS: dict[str, str | None] = {}
"""Parts of the report's data, such as "report: runs.tiles.label", to their names in the working tree, likewise."""

NEW_LOOKS: frozenset[str] = frozenset()
"""Parts that only the working tree has, or whose words changed on purpose."""


def spelled(overrides: Overrides, side: str) -> list[str]:
    """Return the overrides for ``side``: "head" or "base"."""
    return overrides[side] if isinstance(overrides, dict) else overrides
