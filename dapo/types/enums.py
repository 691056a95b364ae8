"""Closed sets of outcomes. A layer that needs only the names imports only this."""

from __future__ import annotations

from enum import StrEnum


class FinishReason(StrEnum):
    """Why an engine ended a response. Truncation is LENGTH and nothing else: never a guess from lengths."""

    STOP = "stop"  # a stop token was sampled; it is the response's last token and carries loss
    LENGTH = "length"  # the response limit was reached without a stop token
    FAILED = "failed"  # the engine could not go on with this response


class Verdict(StrEnum):
    """Result of the keep rule for a finished group."""

    KEPT = "kept"
    ALL_CORRECT = "all_correct"
    ALL_WRONG = "all_wrong"
    UNIFORM = "uniform"  # a metric other than accuracy that does not differ within the group
    OUT_OF_BAND = "out_of_band"
    TOO_FEW_SCORED = "too_few_scored"  # fewer than two voters


class Disposition(StrEnum):
    """Use of a group, where a verdict is about its content."""

    TRAINED = "trained"
    CARRIED = "carried"  # kept, and held for a later step
    FILLED = "filled"  # rejected, yet trained to fill a batch (outcome ``fill``); counts in N with zero advantage
    COPIED = "copied"  # a kept group trained once more in place of a rejected one (mode ``replace``)
    EXPIRED = "expired"  # held back, and dropped at the age limit (``on_max_age: drop``)
    DISCARDED = "discarded"  # rejected, or kept surplus or unfinished under ``discard``
