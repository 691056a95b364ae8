"""Other trainers' metrics, computed from dapo's."""

from __future__ import annotations

import math
from collections.abc import Mapping


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
