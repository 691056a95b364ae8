"""Unusual settings of a recipe: warnings, shown when a run starts."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from dapo.config.check_teacher import teachers
from dapo.config.checks import (
    correction_kind,
    kl_in_loss,
    long_warmup,
    penalty_interval,
    ratio_against,
    schedule_steps,
)
from dapo.config.deployment import Deployment
from dapo.config.reward_range import fitting, overflow, weights_said
from dapo.config.schema import Recipe
from dapo.config.staleness import keeps_old_cache, staleness_warnings
from dapo.config.unread import unread
from dapo.system import core_count
from dapo.words import counted


def warnings_of(recipe: Recipe, changed: Collection[str]) -> list[str]:
    """Warnings of a recipe that passed the checks.

    Args:
        recipe: the recipe.
        changed: paths of the settings that differ from the preset by choice; those that nothing reads
            are named.
    """
    if recipe.run.stage == "sft":
        return []  # they speak of training by reward
    said = [warning for part in _PARTS for warning in part(recipe)]
    return said + [f"{path} is set, and nothing reads it: {reason}" for path, reason in unread(recipe, changed)]


def _sampling(r: Recipe) -> Iterator[str]:
    d = r.algorithm.dynamic_sampling
    if d.mode == "filter" and d.cap.groups is None and d.cap.tokens is None:
        yield (
            "algorithm.dynamic_sampling has no cap (cap.groups and cap.tokens are null): a step whose groups are all "
            "rejected never ends"
        )
    if d.mode == "filter" and d.unfinished == "discard":
        yield (
            "algorithm.dynamic_sampling.unfinished: discard throws long responses away more often than short ones, "
            "so training sees shorter answers than the policy gives"
        )
    a = r.algorithm
    if "high" in a.loss.clips and a.clip.high < a.clip.low:
        yield f"algorithm.clip.high = {a.clip.high} is below clip.low = {a.clip.low}: the opposite of clip-higher"
    if a.overlong_punishment.enabled and a.shaping is None:
        longest, _ = penalty_interval(r)
        if longest > r.rollout.max_response_tokens:
            yield (
                f"algorithm.overlong_punishment.max_length = {longest} is above rollout.max_response_tokens = "
                f"{r.rollout.max_response_tokens}: the full penalty is never reached"
            )
    if a.overlong_filtering and a.truncated_vote:
        yield (
            "algorithm.truncated_vote with overlong_filtering: truncated responses move the baseline of their group "
            "and carry no loss themselves (response/voters counts them, response/with_loss does not)"
        )


def _loss(r: Recipe) -> Iterator[str]:
    loss = r.algorithm.loss
    yield from loss.doubts()
    if kl_in_loss(r) and r.algorithm.kl_estimator == "k1":
        yield (
            "algorithm.kl_estimator: k1 as a term of the loss has no expected gradient on the policy's own samples: "
            "its value is the KL and its gradient that of log p, which averages to zero. Take k2 (the gradient of "
            "KL(policy, reference)) or k3, or algorithm.kl_in_reward=true"
        )
    taught = r.algorithm.teacher
    if teachers(r) and taught.term == "loss" and taught.estimator == "k1":
        yield (
            "algorithm.teacher.estimator: k1 as a term of the loss has no expected gradient on the student's own "
            "samples: take k2, or term: advantage, which is k1 with a gradient"
        )
    if r.model.path in teachers(r).values():
        yield (
            "algorithm.teacher is the model that training begins with: at the start both agree, and the teacher then "
            "pulls the student back, as algorithm.kl_coefficient does"
        )
    one_minibatch = (r.learner.minibatch_prompts or r.rollout.prompts_per_step) >= r.rollout.prompts_per_step
    one_step = one_minibatch and r.learner.epochs_per_rollout == 1
    fresh = not Deployment(r).overlaps and r.algorithm.dynamic_sampling.mode == "off"
    if loss.penalises_distance and one_step and (fresh or ratio_against(r) == "learner"):
        yield (
            f"algorithm.loss.kind: {loss.kind} with one optimizer step per training step: every ratio is 1, where the "
            "penalty abs(log r) has no slope, so it does nothing. Set learner.minibatch_prompts below "
            "rollout.prompts_per_step, or learner.epochs_per_rollout above 1"
        )
    rounded = [d for d in (r.model.dtype, r.rollout.vllm.dtype) if d not in (None, "float32")]
    against = r.algorithm.old_logprobs
    if against in ("sampler", "interpolated") and rounded:
        yield (
            f"algorithm.old_logprobs: {against} in {rounded[0]}: engine and learner round differently, by about 0.01 "
            "nats a token, and the ratio takes that for a change of the policy; nothing corrects it. "
            "algorithm.old_logprobs=auto runs the ratio against the learner's own numbers"
        )


def _cut(r: Recipe) -> Iterator[str]:
    """With ``top_p`` or ``top_k`` the sampler's probabilities are renormalised, and the learner's are not."""
    kind = correction_kind(r)
    if ratio_against(r) != "learner" or kind in ("none", "report"):
        return
    for name, value, neutral in (("top_p", r.rollout.top_p, 1.0), ("top_k", r.rollout.top_k, 0)):
        if value != neutral and kind == "mask_off_policy":
            yield (
                f"rollout.{name} = {value:g} with algorithm.correction.kind: {kind}: the sampler's log-probabilities "
                "contain the logarithm of the probability mass that sampling kept, so algorithm.correction.threshold "
                f"is reached earlier; rollout.{name}={neutral:g} leaves out the cut"
            )
        elif value != neutral:
            yield (
                f"rollout.{name} = {value:g} with algorithm.correction.kind: {kind}: on fresh tokens the correction is "
                "the probability mass that sampling kept, below 1, and train/gap_mean contains its logarithm. It "
                "corrects for the cut, not for an engine: algorithm.correction.kind=none leaves the cut out of it, "
                f"rollout.{name}={neutral:g} leaves out the cut"
            )


def _old_cache(r: Recipe) -> Iterator[str]:
    if not keeps_old_cache(r):
        return
    against = r.algorithm.old_logprobs
    so = (
        "the ratio runs against the learner's"
        if ratio_against(r) == "learner"
        else f"algorithm.old_logprobs: {against} trains on them. algorithm.old_logprobs=learner does not"
    )
    yield (
        "rollout.embedded.recompute_cache: false keeps keys and values of old weights in running responses: "
        "log-probabilities after a change of weights are then those of no version, by tenths of a nat, and "
        f"{so}. Leave the setting out for exact ones, at the price of a prefill of the running responses in each step"
    )


def _rewards(r: Recipe) -> Iterator[str]:
    if any(reward.per == "group" and reward.name == "accuracy" for reward in r.rewards):
        yield (
            "the reward called accuracy sees its group (per: group): a score that compares responses with each other "
            "does not rise when all become better, so validation/accuracy and the keep rule may say nothing; let an "
            "accuracy compare with the answer, and give the comparison a name of its own"
        )
    scaling, found = r.algorithm.reward_scaling, overflow(r, functions=True)
    if found is not None:
        names = " and ".join(f"`{name}`" for name in found.functions)
        yield (
            f"algorithm.reward_scaling clamps the weighted sum of the rewards to {scaling.source_min:g} .. "
            f"{scaling.source_max:g}; with the weights {weights_said(r.rewards)}, that of {found.source} can run from "
            f"{found.low:g} to {found.high:g} where {names} gives values from 0 to 1. What is clamped away teaches "
            f"nothing: set {fitting(r, found)}, or the range that your function needs"
        )


LORA_RATE = 5e-6
"""Below it a learning rate is full fine-tuning's: an adapter takes ten times as much ("LoRA Without Regret", 2025)."""


def _lora(r: Recipe) -> Iterator[str]:
    if r.model.lora.rank is None:
        return
    rate = r.learner.learning_rate
    if rate < LORA_RATE:
        yield (
            f"learner.learning_rate = {rate:g} is one for full fine-tuning: an adapter takes about ten times as much "
            f"(learner.learning_rate={10 * rate:.0e}), and published runs take 1e-5 to 1e-4"
        )
    if r.model.dtype == "bfloat16" and Deployment(r).engine != "generate" and not Deployment(r).sends_adapter:
        or_generate = " or rollout.engine=generate lose" if r.learner.ranks == 1 else " loses"
        yield (
            "model.lora in bfloat16: the engine gets the adapter merged into weights of 8 bits, which rounds small "
            "changes away (train/merge_error says how much of them). The ratio runs against the learner's numbers "
            f"unless algorithm.old_logprobs says otherwise; model.dtype=float32{or_generate} nothing"
        )


def _sizes(r: Recipe) -> Iterator[str]:
    longest = r.data.max_prompt_tokens + r.rollout.max_response_tokens
    if longest > r.learner.microbatch_tokens:
        yield (
            f"learner.microbatch_tokens = {r.learner.microbatch_tokens} is less than the longest possible sequence "
            f"({longest} tokens), which then goes alone and takes more memory than the budget says"
        )
    if r.run.threads > (cores := core_count()):
        yield (
            f"run.threads is {r.run.threads}, and this machine has {counted(cores, 'core')}: threads wait for each "
            "other, and a step takes many times as long"
        )


def _run(r: Recipe) -> Iterator[str]:
    of = "optimizer steps" if r.learner.schedule_unit == "optimizer" else "steps"
    if said := long_warmup("learner", r.learner.warmup, schedule_steps(r), r.learner.learning_rate, of):
        yield said
    if not r.data.validation:
        yield "data.validation is empty: accuracy on problems that were not trained on is not measured"
    if Deployment(r).engine == "generate":
        yield "rollout.engine: generate works with any model and is several times slower than embedded"


_PARTS = (_sampling, _loss, _cut, _old_cache, _rewards, _lora, _sizes, _run, staleness_warnings)
