"""Where a peer's step and ours are apart by definition, and the setting that closes it.

    python tests/oracles/step_differences.py > benchmarks/results/step_differences.md

Each row names two steps of ``step_questions.py``: one in which the difference shows, and the one with the setting, in
which both sides are equal.
"""

from __future__ import annotations

from dataclasses import dataclass

from step_questions import TRL, VERL


@dataclass(frozen=True)
class Difference:
    """A row of the table."""

    peer: str
    there: str
    here: str
    closes: str
    apart: str  # the step in which it shows
    equal: str | None  # the step with the setting that closes it


NONE = "none"
DIFFERENCES = (
    Difference(
        TRL, "adds 1e-4 to the standard deviation of a group", "adds 1e-6", "`algorithm.advantage.eps: 0.0001`",
        "our eps", "dapo, close rewards",
    ),
    Difference(
        TRL, "`epsilon_high` is `epsilon` unless set", "`algorithm.clip.high` is 0.28", "`algorithm.clip.high: 0.2`",
        "higher above", "dapo, one epsilon",
    ),
    Difference(
        TRL, "the ratio runs against the learner's own numbers", "with the embedded engine in float32 against the "
        "sampler's", "`algorithm.old_logprobs: learner`, `algorithm.correction.kind: none`",
        "ratio against the sampler", "dapo",
    ),
    Difference(
        TRL, "`loss_type: dapo` and `cispo` divide by the mean token count of a rollout batch's optimiser steps",
        "`token_mean` divides by the optimiser step's own",
        "one optimiser step for a rollout batch: `learner.minibatch_prompts: null`, there `steps_per_generation` equal "
        "to `gradient_accumulation_steps`", "windows of unequal tokens", "dapo, one optimiser step",
    ),
    Difference(
        TRL, "responses are shuffled over the optimiser steps of a rollout batch", "groups stay whole",
        "one optimiser step for a rollout batch, as above", "shuffled", "dapo, one optimiser step",
    ),
    Difference(
        TRL, "with `mask_truncated_completions` the truncated count in mean and deviation", "what carries no loss does "
        "not vote", "`algorithm.truncated_vote: true`", "the truncated do not vote", "dapo, masked",
    ),
    Difference(
        TRL, "`loss_type: grpo` divides by all responses, also those without loss tokens", "`sequence_mean` divides by "
        "those with some", f"{NONE}: the loss is larger here by their share", "grpo, masked", None,
    ),
    Difference(
        TRL, "`use_bias_correction_kl` (on) multiplies the KL term by the ratio", "no ratio touches the KL term",
        "there `use_bias_correction_kl=False`", "KL times ratio", "grpo, KL",
    ),
    Difference(
        TRL, "the entropy bonus is a mean over tokens, whatever the loss", "it has the loss's weights",
        "`algorithm.loss.reduction: token_mean`", "entropy over tokens", "dapo, entropy",
    ),
    Difference(
        TRL, "weight decay leaves out norms and biases", "every parameter decays", "`learner.weight_decay: 0` on both "
        "sides", "norms do not decay", "dapo",
    ),
    Difference(
        TRL, "the learning rate falls to 0 (`lr_scheduler_type: linear`)", "it is constant",
        "`learner.schedule: linear`, `learner.schedule_unit: optimizer`", "constant rate", "dapo, linear",
    ),
    Difference(
        TRL, "the first warm-up step has the learning rate 0", "it has peak / warm-up steps", "`learner.warmup: 0` on "
        "both sides", "warm-up", "dapo",
    ),
    Difference(
        TRL, "with vLLM: responses whose product of ratios is above 3 are masked", "token ratios are cut "
        "at 2 (`truncate`)", "there `vllm_importance_sampling_mode='token_truncate'` with `algorithm.correction.cap`",
        "mask by the product", "correction, token_truncate",
    ),
    Difference(
        TRL, "`scale_rewards: batch` divides by the deviation of all rewards", "`batch_std` divides by that of rewards "
        "less their group's mean", f"{NONE}: `group_std` and `none` are the same on both sides",
        "deviation of all rewards", None,
    ),
    Difference(
        TRL, "rewards as they are", "accuracy 0 to 1 becomes -1 to 1", "`algorithm.reward_scaling.enabled: false`",
        "scaled rewards", "dr_grpo",
    ),
    Difference(
        TRL, "no length penalty", "soft overlong punishment", "`algorithm.overlong_punishment.enabled: false`",
        "length penalty", "dapo",
    ),
    Difference(
        TRL, "later passes take the minibatches of the first (`num_iterations`)", "they draw their minibatches anew",
        "one optimiser step a pass: `learner.minibatch_prompts: null`, there `steps_per_generation` equal to "
        "`gradient_accumulation_steps`", "two passes over minibatches", "dapo, two passes",
    ),
    Difference(
        VERL, "dual clip at `clip_ratio_c` = 3, always", "none unless set", "`algorithm.clip.dual: 3.0`",
        "no dual clip", "token-mean, old is the sampler's",
    ),
    Difference(
        VERL, "the ratio runs against the actor's own numbers", "with the embedded engine in float32 against the "
        "sampler's", "`algorithm.old_logprobs: learner`, `algorithm.correction.kind: none`; or there "
        "`rollout_correction.bypass_mode: true`", "ratio against the sampler", "token-mean",
    ),
    Difference(
        VERL, "truncated responses carry loss", "they carry none and do not vote",
        "`algorithm.overlong_filtering: false`", "the truncated are left out", "token-mean",
    ),
    Difference(
        VERL, "a token's k3 is cut at 10", "it is not", f"{NONE}: equal while no token is 2.6 nats likelier under the "
        "reference", "KL beyond the clamp", "KL",
    ),
    Difference(
        VERL, "rejected responses (`rollout_rs`, whose bounds are of the inverse ratio) leave the token count",
        "`mask_sequence` leaves it as it is",
        "a reduction that counts no tokens: `sequence_sum`, there `seq-mean-token-sum`", "rejected sequences",
        "rejected sequences, sums",
    ),
    Difference(
        VERL, "later passes take the minibatches of the first (`ppo_epochs`), unless `shuffle` is set",
        "they draw their minibatches anew",
        "one optimiser step a pass: `learner.minibatch_prompts: null`, there `ppo_mini_batch_size` equal to "
        "`train_batch_size`", "two passes over minibatches", "two passes",
    ),
    Difference(
        VERL, "the first warm-up step has the learning rate 0", "it has peak / warm-up steps", "`learner.warmup: 0` on "
        "both sides", "warm-up", "token-mean",
    ),
)  # fmt: skip


def page() -> str:
    """Return the differences as a page."""
    lines = [
        "# Training steps: differences by definition",
        "",
        "Made by `python tests/oracles/step_differences.py`. Without the setting in the last column a step differs "
        "from the peer's; with it both are equal up to rounding. `make oracles` runs both steps of each row.",
        "",
    ]
    lines += ["| peer | there | here | closed by |", "| --- | --- | --- | --- |"]
    names = {TRL: "TRL", VERL: "verl"}
    lines += [f"| {names[d.peer]} | {d.there} | {d.here} | {d.closes} |" for d in DIFFERENCES]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
