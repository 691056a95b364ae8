"""Other trainers' metric names and dapo's equivalents: a namesake, or a formula in dapo's keys.

The names are those of their own sources: NeMo RL (`nemo_rl/algorithms/grpo.py`), verl
(`verl/trainer/ppo/metric_utils.py` and its actor), TRL (`trl/trainer/grpo_trainer.py`, whose names ms-swift's list of
logged metrics has too), SkyRL (`skyrl/train/trainer.py`; its policy's numbers get `policy/` in front), AReaL
(`areal/trainer/ppo/actor.py`; scopes become parts of the name, and each number has `/avg`, `/min` and `/max`).
``dapo explain NAME`` and docs/metrics.md show them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

_NEMO, _VERL, _TRL, _SWIFT, _SKYRL, _AREAL = "NeMo RL", "verl", "TRL", "ms-swift", "SkyRL", "AReaL"


@dataclass(frozen=True, slots=True)
class PeerMetric:
    """One metric of another trainer."""

    key: str
    who: tuple[str, ...]
    ours: tuple[str, ...]  # keys of the glossary that it is, or is made of
    how: str = ""  # the formula, or what differs; empty: the same


PEER_METRICS: tuple[PeerMetric, ...] = (
    PeerMetric(
        "dynamic_sampling_num_gen_batches",
        (_NEMO,),
        ("sampling/refills", "groups/dispatched"),
        "1 + `sampling/refills` where algorithm.dynamic_sampling.oversample is set, which makes rounds as there; "
        "without it there are no rounds, and `groups/dispatched` / (P x batch_multiplier), rounded up, is what the "
        "same groups would have been there",
    ),
    PeerMetric(
        "dynamic_sampling_num_discarded_valid_samples",
        (_NEMO,),
        ("groups/discarded", "groups/finished", "groups/kept", "groups/filled"),
        "G x (`groups/discarded` - (`groups/finished` - `groups/kept` - `groups/filled`)) in the modes filter and "
        "replace with `unfinished` at carry or drain, as in dapo-verl: what was thrown away less what was rejected; 0 "
        "with `surplus: carry`, the default",
    ),
    PeerMetric(
        "filtered_reward",
        (_NEMO,),
        ("reward/shaped_mean",),
        "the mean over trained groups after scaling and length penalty",
    ),
    PeerMetric(
        "critic/score/mean",
        (_VERL,),
        ("reward/raw_kept",),
        "over the groups that train, in the scale of the reward function; there with the overlong penalty, which is "
        "`response/penalty_mean` here; `reward/raw` is the same over all finished groups",
    ),
    PeerMetric("critic/rewards/mean", (_VERL,), ("reward/shaped_mean",), "there without reward scaling"),
    PeerMetric("actor/entropy", (_VERL,), ("train/entropy",)),
    PeerMetric("actor/pg_loss", (_VERL,), ("train/loss",), "without the terms for KL and entropy there"),
    PeerMetric(
        "actor/pg_clipfrac",
        (_VERL,),
        ("train/clip_low", "train/clip_high"),
        "`train/clip_low` + `train/clip_high`",
    ),
    PeerMetric("actor/pg_clipfrac_lower", (_VERL,), ("train/clip_dual",)),
    PeerMetric(
        "actor/ppo_kl",
        (_VERL,),
        ("train/approx_kl",),
        "the mean of -log r there (K1, may be negative), of r - 1 - log r here (K3)",
    ),
    PeerMetric("actor/kl_loss", (_VERL,), ("train/kl",), "by `algorithm.kl_estimator` there, always K3 here"),
    PeerMetric("actor/grad_norm", (_VERL,), ("train/grad_norm",)),
    PeerMetric("actor/lr", (_VERL,), ("train/learning_rate",)),
    PeerMetric("response_length/mean", (_VERL,), ("response/length_trained_mean",), "of the groups that train"),
    PeerMetric("response_length/clip_ratio", (_VERL,), ("response/truncated_share_trained",)),
    PeerMetric("timing_s/gen", (_VERL,), ("time/generate",)),
    PeerMetric("timing_s/step", (_VERL,), ("time/step",)),
    PeerMetric("timing_s/update_actor", (_VERL,), ("time/learn",)),
    PeerMetric(
        "frac_reward_zero_std",
        (_TRL, _SWIFT),
        ("sampling/acceptance_rate",),
        "1 - `sampling/acceptance_rate` by the accuracy; there by the weighted sum of all rewards",
    ),
    PeerMetric(
        "reward_std",
        (_TRL, _SWIFT),
        ("reward/shaped_std",),
        "the mean of the groups' standard deviations there, that of all responses here",
    ),
    PeerMetric("completions/mean_length", (_TRL, _SWIFT), ("response/length_mean",)),
    PeerMetric("completions/max_length", (_TRL, _SWIFT), ("response/length_max",)),
    PeerMetric("completions/clipped_ratio", (_TRL, _SWIFT), ("response/truncated_share",)),
    PeerMetric("clip_ratio/low_mean", (_TRL, _SWIFT), ("train/clip_low",)),
    PeerMetric("clip_ratio/high_mean", (_TRL, _SWIFT), ("train/clip_high",)),
    PeerMetric(
        "clip_ratio/region_mean",
        (_TRL, _SWIFT),
        ("train/clip_low", "train/clip_high"),
        "`train/clip_low` + `train/clip_high`",
    ),
    PeerMetric("kl", (_TRL, _SWIFT), ("train/kl",)),
    PeerMetric("entropy", (_TRL,), ("train/entropy",)),
    PeerMetric("entropy/mean", (_SWIFT,), ("train/entropy",), "the mean over responses of each one's mean there"),
    PeerMetric("sampling/sampling_logp_difference/mean", (_TRL,), ("train/gap_mean",)),
    PeerMetric("sampling/importance_sampling_ratio/mean", (_TRL,), ("train/correction_mean",)),
    PeerMetric("reward/avg_raw_reward", (_SKYRL,), ("reward/raw_kept",), "over the batch that trains"),
    PeerMetric("policy/policy_entropy", (_SKYRL,), ("train/entropy",)),
    PeerMetric(
        "policy/ppo_clip_ratio",
        (_SKYRL,),
        ("train/clip_low", "train/clip_high"),
        "`train/clip_low` + `train/clip_high`",
    ),
    PeerMetric("policy/policy_loss", (_SKYRL,), ("train/loss",), "without the terms for KL and entropy there"),
    PeerMetric("policy/policy_lr", (_SKYRL,), ("train/learning_rate",)),
    PeerMetric("policy/raw_grad_norm", (_SKYRL,), ("train/grad_norm",)),
    PeerMetric(
        "ppo_actor/task_reward/avg",
        (_AREAL,),
        ("reward/raw_kept", "response/penalty_mean"),
        "`reward/raw_kept` + `response/penalty_mean`: the overlong penalty is in it there, bias and scale are not",
    ),
    PeerMetric(
        "ppo_actor/seq_len/avg", (_AREAL,), ("response/length_trained_mean",), "there with the prompt, `prompt_len/avg`"
    ),
    PeerMetric(
        "ppo_actor/no_eos_ratios/avg",
        (_AREAL,),
        ("response/truncated_share_trained",),
        "there the share that is as long, prompt included, as the longest of the batch, whether it ended or not",
    ),
    PeerMetric("ppo_actor/update/actor_loss/avg", (_AREAL,), ("train/loss",), "with `loss.reduction: token_mean`"),
    PeerMetric("ppo_actor/update/entropy/avg", (_AREAL,), ("train/entropy",)),
    PeerMetric(
        "ppo_actor/update/clip_ratio/avg",
        (_AREAL,),
        ("train/clip_low", "train/clip_high"),
        "`train/clip_low` + `train/clip_high`",
    ),
    PeerMetric("ppo_actor/update/dual_clip_ratio/avg", (_AREAL,), ("train/clip_dual",)),
    PeerMetric(
        "ppo_actor/update/approx_kl/avg",
        (_AREAL,),
        ("train/approx_kl",),
        "the mean of log r there (may be negative), of r - 1 - log r here (K3)",
    ),
    PeerMetric("ppo_actor/update/behave_imp_weight/avg", (_AREAL,), ("train/correction_mean",)),
    PeerMetric("ppo_actor/update/grad_norm", (_AREAL,), ("train/grad_norm",)),
    PeerMetric("ppo_actor/update/lr", (_AREAL,), ("train/learning_rate",)),
    PeerMetric("timeperf/rollout", (_AREAL,), ("time/generate",)),
    PeerMetric("timeperf/train_step", (_AREAL,), ("time/learn",)),
    PeerMetric("timeperf/update_weights", (_AREAL,), ("time/publish",)),
)


def peer_metric(key: str) -> PeerMetric | None:
    """Return the entry of a name, with or without the ``train/`` in front that NeMo RL and TRL log it under."""
    names = {entry.key: entry for entry in PEER_METRICS}
    return names.get(key) or names.get(key.removeprefix("train/"))


def nemo_rl_metrics(
    metrics: Mapping[str, float | None], prompts: int, group_size: int, oversample: float | None
) -> dict[str, float]:
    """Return NeMo RL's metrics of dynamic sampling by its names, those for which a step has the numbers.

    Args:
        metrics: of one step, as in metrics.jsonl.
        prompts: P.
        group_size: G.
        oversample: groups of a first round in multiples of P; None: groups are sent as they are needed, and the rounds
            are those that the same groups would have been.
    """
    known = {key: value for key, value in metrics.items() if value is not None}
    found: dict[str, float] = {}
    if "reward/shaped_mean" in known:
        found["train/filtered_reward"] = known["reward/shaped_mean"]
    if oversample is not None and "sampling/refills" in known:
        found["train/dynamic_sampling_num_gen_batches"] = 1 + known["sampling/refills"]
    elif oversample is None and "groups/dispatched" in known:
        found["train/dynamic_sampling_num_gen_batches"] = math.ceil(known["groups/dispatched"] / prompts)
    counted = ("groups/discarded", "groups/finished", "groups/kept", "groups/filled")
    if all(key in known for key in counted):
        discarded, finished, kept, filled = (known[key] for key in counted)
        found["train/dynamic_sampling_num_discarded_valid_samples"] = group_size * (
            discarded - (finished - kept - filled)
        )
    return found
