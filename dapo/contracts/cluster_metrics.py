"""Glossary lines of what lives in processes of its own."""

from __future__ import annotations

from collections.abc import Iterator

from dapo.contracts.metric import COUNT, SECONDS, Metric


def cluster_metrics() -> Iterator[Metric]:
    """Of a pool of engines; a run with one engine has none of them."""
    yield Metric("cluster/engines", COUNT, "Engines at work when this step was trained.", "higher")
    yield Metric(
        "cluster/engine_losses",
        COUNT,
        "Engines lost since the step before: killed, out of memory, silent for too long.",
        "lower",
    )
    yield Metric(
        "cluster/resubmitted", COUNT, "Responses that a lost engine had begun, and that are made again.", "lower"
    )
    yield Metric("cluster/turns", COUNT, "Turns that came back from engines.")
    yield Metric("cluster/turn_seconds", SECONDS, "Mean seconds that an engine worked in a turn.", clock=True)
