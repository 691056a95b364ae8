"""Lines of the glossary about groups, responses, their rewards and what they cost."""

from __future__ import annotations

from collections.abc import Iterator

from dapo.metrics.metric import COUNT, SECONDS, SHARE, TOKENS, Better, Metric
from dapo.types.enums import Disposition, Verdict

_VERDICTS = {
    Verdict.KEPT: "have both correct and wrong voters (or pass the chosen keep rule)",
    Verdict.ALL_CORRECT: "are correct in every voter: no gradient",
    Verdict.ALL_WRONG: "are wrong in every voter: no gradient",
    Verdict.UNIFORM: "do not differ in the chosen metric (one other than accuracy)",
    Verdict.OUT_OF_BAND: "have a mean metric outside the chosen band (or are called so by a keep rule of yours)",
    Verdict.TOO_FEW_SCORED: "have fewer than two voters",
}
_DISPOSITIONS = {
    Disposition.TRAINED: "trained in this step",
    Disposition.CARRIED: "kept and held for a later step, counted in each step that they wait",
    Disposition.FILLED: "rejected, yet trained to fill the batch; they count in N with advantage zero",
    Disposition.COPIED: "kept and trained once more in place of a rejected one (mode `replace`)",
    Disposition.EXPIRED: "held back, and dropped at the age limit (`on_max_age: drop`)",
    Disposition.DISCARDED: "rejected (tokens: `cost/rejected_tokens`), or thrown away under `surplus: discard` or "
    "`unfinished: discard` (`cost/discarded_tokens`)",
}


def group_metrics() -> Iterator[Metric]:
    yield Metric("groups/dispatched", COUNT, "Groups sent to the engine in this step.")
    yield Metric("groups/finished", COUNT, "Groups whose responses all ended and were judged in this step.")
    for verdict, meaning in _VERDICTS.items():
        yield Metric(f"groups/{verdict}", COUNT, f"Groups judged in this step that {meaning}.")
    for verdict, meaning in _VERDICTS.items():
        better: Better = "higher" if verdict is Verdict.KEPT else None
        yield Metric(f"groups/{verdict}_share", SHARE, f"Share of judged groups that {meaning}.", better)
    for disposition, meaning in _DISPOSITIONS.items():
        yield Metric(f"groups/{disposition}", COUNT, f"Groups {meaning}.")
    yield Metric("groups/waiting", COUNT, "Kept groups held for a later step when this one ended.")
    yield Metric("groups/unfinished", COUNT, "Groups still decoding, or half decoded, when this step ended.")
    yield Metric(
        "groups/age_mean",
        "versions",
        "Mean age of the trained groups: versions between the weights that the engine had when it was sent a group and "
        "those that this step trains. In a synchronous run these are the steps since then.",
    )
    yield Metric("groups/age_max", "versions", "Age of the oldest trained group.")


def sampling_metrics() -> Iterator[Metric]:
    yield Metric("sampling/acceptance_rate", SHARE, "Kept groups / groups judged, in this step.", "higher")
    yield Metric(
        "sampling/acceptance_estimate", SHARE, "Running estimate of the acceptance rate that sizes the refills."
    )
    yield Metric(
        "sampling/refills", COUNT, "Times that more prompts were dispatched because kept groups were missing.", "lower"
    )
    yield Metric(
        "sampling/cap_reached",
        COUNT,
        "1 when the cap on dynamic sampling or the end of the data ended this step.",
        "lower",
    )
    yield Metric("sampling/responses", COUNT, "Responses that ended in this step.")
    yield Metric("sampling/generated_tokens", TOKENS, "Response tokens generated in this step.")
    yield Metric(
        "sampling/trained_tokens", TOKENS, "Response tokens with loss in this step, each once however many passes."
    )
    yield Metric("sampling/trained_share", SHARE, "Tokens with loss / generated tokens of this step.", "higher")
    yield Metric("sampling/decode_steps", COUNT, "Decode steps of the engine in this step.")
    yield Metric("sampling/slot_use", SHARE, "Busy slots / slots, over the decode steps of this step.", "higher")
    yield Metric("sampling/failed", COUNT, "Responses that the engine could not finish.", "lower")
    yield Metric(
        "sampling/prefill_tokens",
        TOKENS,
        "Tokens computed before a new one: prompts, replies of environments, what carried responses had when they were "
        "taken up, and what running ones had when weights changed.",
    )
    yield Metric("sampling/skipped_prompts", COUNT, "Prompts passed over in this step (retired, or skipped by GRESO).")
    yield Metric("sampling/retired_prompts", COUNT, "Prompts that are retired when this step ends.")


def cost_metrics() -> Iterator[Metric]:
    for fate, meaning, better in (
        ("trained", "of groups trained in this step, whichever step generated them", "higher"),
        ("filled", "of rejected groups that trained to fill the batch", None),
        ("rejected", "of groups that the keep rule rejected in this step", "lower"),
        (
            "discarded",
            "thrown away in this step: kept surplus and unfinished responses under `discard`, without rejected groups, "
            "which `groups/discarded` counts too",
            "lower",
        ),
        ("expired", "dropped in this step at the age limit", "lower"),
    ):
        good: Better = better  # type: ignore[assignment]
        yield Metric(f"cost/{fate}_tokens", TOKENS, f"Response tokens {meaning}.", good)
    yield Metric(
        "cost/held_tokens",
        TOKENS,
        "Response tokens in kept groups that wait and in unfinished responses when this step ends. With "
        "total/cost/{trained,filled,rejected,discarded,expired}_tokens it makes counters/generated_tokens.",
    )
    for fate in ("rejected", "discarded", "expired"):
        yield Metric(
            f"cost/{fate}_seconds",
            SECONDS,
            f"Seconds in generate, score and judge x {fate} tokens / generated tokens.",
            "lower",
            clock=True,
        )
    yield Metric("total/<count>", COUNT, "Sum of that count (a key of `groups/`, `sampling/`, ...) over all steps.")


def environment_metrics() -> Iterator[Metric]:
    groups = "of judged groups"
    yield Metric("environment/turns_mean", COUNT, f"Mean turns of the model in an episode, {groups}.")
    yield Metric("environment/turns_max", COUNT, f"Most turns of the model in an episode, {groups}.")
    yield Metric("environment/calls", COUNT, f"Tools that the model called, {groups}.")
    yield Metric(
        "environment/tool_errors",
        COUNT,
        f"Calls that failed or could not be read, {groups}. The model reads why.",
        "lower",
    )
    yield Metric("environment/errors", COUNT, f"Episodes whose environment failed, {groups}.", "lower")
    yield Metric("environment/turn_limit_share", SHARE, f"Share of episodes that `max_turns` ended, {groups}.", "lower")
    yield Metric(
        "environment/ended_by_reply_share",
        SHARE,
        f"Share of episodes that ended because a reply left no token for the model, {groups}.",
        "lower",
    )
    yield Metric(
        "environment/reply_tokens",
        TOKENS,
        f"Tokens of replies, {groups}. They carry no loss and count in no length, and in no other count of tokens.",
    )
    yield Metric(
        "environment/given_tokens",
        TOKENS,
        "Tokens that the model was given to read in this step: each dispatched prompt once, and each reply before a "
        "further turn.",
    )
    yield Metric(
        "environment/prefill_ratio",
        "1",
        "`sampling/prefill_tokens` / `environment/given_tokens`. About 1: nothing was computed twice. Equal replies "
        "within a group lower it, and with `rows: turns` prompts that begin as the turn before. Carried responses, new "
        "weights and slots that could not be kept raise it.",
        "lower",
    )
    yield Metric("environment/reply_cut_share", SHARE, f"Share of replies that were shortened, {groups}.", "lower")
    yield Metric("environment/reward_mean", "reward", f"Mean over episodes of the replies' summed rewards, {groups}.")
    for name, what in (("mean", "Mean seconds"), ("p90", "90th percentile of the seconds")):
        yield Metric(
            f"environment/seconds_{name}", SECONDS, f"{what} that the environment took for a turn, {groups}.", "lower",
            clock=True,
        )  # fmt: skip
    yield Metric("environment/replayed", COUNT, "Turns played again after a resume or a lost process.", clock=True)
    yield Metric("environment/timeouts", COUNT, "Calls of environments that took longer than their limit.", "lower")
    yield Metric(
        "environment/not_repeatable",
        COUNT,
        "Episodes that went otherwise when they were played again, and began again.",
        "lower",
    )
    yield Metric(
        "environment/waited", SECONDS, "Seconds that the driver waited for replies in this step.", "lower", clock=True
    )
    yield Metric("environment/fact/<name>", "1", f"Mean over turns of a further number of an environment, {groups}.")


def reward_metrics() -> Iterator[Metric]:
    finished, kept = "over all scored responses finished in this step", "over the scored responses of kept groups"
    yield Metric("reward/raw", "reward", f"Mean reward before scaling and length penalty, {finished}.", "higher")
    yield Metric(
        "reward/raw_kept", "reward", f"Mean reward before scaling and length penalty, {kept}: biased by the keep rule."
    )
    yield Metric(
        "reward/raw_min", "reward", "Smallest reward before scaling and length penalty of trained groups' responses."
    )
    yield Metric(
        "reward/raw_max", "reward", "Largest reward before scaling and length penalty of trained groups' responses."
    )
    yield Metric(
        "reward/clamped",
        SHARE,
        "Share of the scored responses of trained groups whose reward (the weighted sum) lay outside "
        "[source_min, source_max] and was clamped by reward scaling.",
        "lower",
    )
    yield Metric("reward/accuracy", SHARE, f"Mean accuracy {finished}: the policy on its training prompts.", "higher")
    yield Metric("reward/accuracy_kept", SHARE, f"Mean accuracy {kept}: mixed groups alone, so pulled towards 0.5.")
    yield Metric("reward/<name>", "reward", f"Mean of the reward of that name, {finished}.", "higher")
    yield Metric("reward/<name>_kept", "reward", f"Mean of the reward of that name, {kept}.")
    yield Metric(
        "reward/shaped_mean",
        "reward",
        "Mean reward after scaling and length penalty of all scored responses of trained groups, voters or not.",
    )
    yield Metric(
        "reward/kl_penalty",
        "reward",
        "Mean of what the KL against the reference adds to the rewards of voters, with `algorithm.kl_in_reward`.",
    )
    yield Metric("reward/shaped_std", "reward", "Standard deviation of that reward.")
    yield Metric("reward/advantage_abs_mean", "1", "Mean absolute advantage of the trained responses' voters.")
    yield Metric(
        "reward/advantage_clipped",
        SHARE,
        "Share of voters whose advantage is at a bound, with `algorithm.advantage_clip`.",
    )
    yield Metric(
        "reward/unscored",
        COUNT,
        "Responses without a score in the groups judged in this step (as in `sampling/responses`); they neither vote "
        "nor train. A verifier may have failed in an earlier step, while the group was not finished.",
        "lower",
    )
    yield Metric("reward/unscored/<reason>", COUNT, "The same by reason (its text before the first colon).", "lower")


def source_metrics() -> Iterator[Metric]:
    of = "that training source's judged groups, with several sources"
    yield Metric("source/<set>/groups", COUNT, f"Number of {of}.")
    yield Metric("source/<set>/accuracy", SHARE, f"Mean accuracy of scored responses in {of}.", "higher")
    for verdict in (Verdict.KEPT, Verdict.ALL_CORRECT, Verdict.ALL_WRONG):
        yield Metric(f"source/<set>/{verdict}_share", SHARE, f"Share {verdict.replace('_', ' ')} of {of}.")
    yield Metric("source/<set>/level", COUNT, "Level of that procedural source when the step ends, from 1.")


def response_metrics() -> Iterator[Metric]:
    yield from _lengths()
    yield Metric(
        "response/truncated_share",
        SHARE,
        "Share of finished responses that the engine ended at the length limit.",
        "lower",
    )
    yield Metric(
        "response/truncated_share_trained",
        SHARE,
        "Share of trained groups' responses that were ended at the length limit.",
        "lower",
    )
    yield from _thinking()
    yield Metric(
        "response/penalty_mean",
        "reward",
        "Mean soft overlong punishment (eq. 13) of trained responses; 0 is none.",
        "higher",
    )
    yield Metric("response/penalized", SHARE, "Share of trained responses with a length penalty.", "lower")
    yield Metric(
        "response/voters",
        SHARE,
        "Share of trained groups' responses that vote: count in mean, std and keep decision. Not the unscored, nor "
        "those cut off unless `truncated_vote`.",
    )
    yield Metric(
        "response/with_loss",
        SHARE,
        "Share of trained groups' responses that carry loss: voters, but for those cut off under `overlong_filtering`.",
    )


def _lengths() -> Iterator[Metric]:
    for group, of in (("", ""), ("correct_", "correct "), ("wrong_", "wrong ")):
        for name, text in (
            ("mean", "Mean"),
            ("p10", "10 % quantile of the"),
            ("p50", "Median"),
            ("p90", "90 % quantile of the"),
            ("max", "Largest"),
        ):
            yield Metric(
                f"response/length_{group}{name}",
                TOKENS,
                f"{text} length of {of}finished responses, stop token included.",
            )
    yield Metric("response/length_trained_mean", TOKENS, "Mean length of the responses trained in this step.")


def _thinking() -> Iterator[Metric]:
    yield Metric(
        "response/thinking_tokens_mean",
        TOKENS,
        "With `data.thinking`: mean tokens of finished responses up to the closing tag; of unclosed ones all.",
    )
    yield Metric(
        "response/thinking_unclosed_share",
        SHARE,
        "With `data.thinking`: share of finished responses whose thinking was never closed; they have no answer.",
        "lower",
    )
    yield Metric(
        "response/thinking_forced_share",
        SHARE,
        "With `data.thinking`: share of finished responses whose thinking `data.thinking.budget` ended.",
        "lower",
    )
