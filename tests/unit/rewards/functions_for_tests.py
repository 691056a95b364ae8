"""Reward functions in the forms of other trainers."""

import asyncio
import os
import time

_loaded = []


def slow_at_first(prompt, completion):
    """Imports for three seconds in its first call, as one does that needs torch."""
    if not _loaded:
        _loaded.append(time.sleep(3))
    return float(completion.text == prompt.answer)


def ends_at_a_box(prompt, completion):
    if "boxed" in completion.text:
        os._exit(3)
    return float(completion.text == prompt.answer)


async def awaited(prompt, completion):
    await asyncio.sleep(0)
    return {"accuracy": float(completion.text == prompt.answer), "length": len(completion.text)}


def trl_plain(completions, ground_truth, **kwargs):
    return [float(text.strip() == gold) for text, gold in zip(completions, ground_truth, strict=True)]


def trl_messages(prompts, completions, answer, **kwargs):
    said = [completion[0]["content"] for completion in completions]
    assert prompts[0][-1]["role"] == "user"
    return [1.0 if text == gold else 0.0 for text, gold in zip(said, answer, strict=True)]


async def trl_async(prompts, completions, level, **kwargs):
    await asyncio.sleep(0)
    return [None if one == "skip" else 1.0 for one in level]


def trl_ids(completion_ids, **kwargs):
    return [len(ids) / 10 for ids in completion_ids]


def trl_metric(completions, log_metric, log_extra, **kwargs):
    log_extra("seen", completions)
    log_metric("length", 7.0)
    return [1.0]


def trl_kind(completions, **kwargs):
    """1 for messages, 0 for text: valid for both."""
    return [float(isinstance(completions[0], list))]


def trl_state(completions, trainer_state):
    return [1.0]


def trl_too_many(completions, **kwargs):
    return [1.0, 0.0]


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    right = solution_str.strip() == ground_truth
    return {
        "score": float(right),
        "acc": right,
        "pred": solution_str,
        "source": data_source,
        "index": extra_info["index"],
    }


def verl_number(solution_str, ground_truth, **kwargs):
    assert set(kwargs) == {"data_source", "extra_info"}
    return float(solution_str == ground_truth)


def verl_server(data_source, solution_str, ground_truth, extra_info, reward_router_address):
    return 1.0


def of_texts(text, gold):
    return 1.0


def trl_places(prompts, completions, answer, /, **kwargs):
    assert set(kwargs) >= {"problem", "log_metric"}
    assert not set(kwargs) & {"prompts", "completions", "answer"}
    return trl_plain(completions, answer)


def verl_places(data_source, solution_str, ground_truth, extra_info=None, /):
    return verl_number(solution_str, ground_truth, data_source=data_source, extra_info=extra_info)


def ours_places(prompt, completion, /):
    return float(completion.text == prompt.answer)


def wrapper(function):
    """As a decorator that names no parameters."""

    def call(*args, **kwargs):
        return function(*args, **kwargs)

    return call


trl_wrapped, verl_wrapped = wrapper(wrapper(trl_plain)), wrapper(verl_number)
ours_wrapped, trl_metric_wrapped = wrapper(ours_places), wrapper(trl_metric)
texts_wrapped = wrapper(of_texts)


def ours_more(prompt, *others):
    return float(others[0].text == prompt.answer)


def verl_odd(solution_str, ground_truth, extra_info):
    """As verl's functions do: what is logged may be missing, a text, or called by a path."""
    found = {"score": float(solution_str == ground_truth), "format/ok": True, "f1": float("nan"), "pred": solution_str}
    return {**found, "rate_kept": 1, 7: 2.0, "none": None, "many": [1, 2], "index": extra_info["index"]}


def verl_text(solution_str, ground_truth, extra_info):
    return float(extra_info == "free text")


def verl_nan(solution_str, ground_truth):
    return {"score": float("nan")}


def trl_odd_metric(completions, log_metric):
    log_metric("part/format", 1.0)
    log_metric("loss", float("inf"))
    return [1.0]


def longest(prompt, completions):
    """1 for the longest response of its group; how many there were is recorded."""
    lengths = [len(completion.text) for completion in completions]
    return [{"accuracy": float(length == max(lengths)), "members": len(lengths)} for length in lengths]


def trl_rank(prompts, completions, level, log_metric, **kwargs):
    assert len(prompts) == len(completions) == len(level)
    log_metric("members", len(completions))
    return [sum(len(other) < len(text) for other in completions) / len(completions) for text in completions]


def verl_batch(data_sources, solution_strs, ground_truths, extra_infos):
    right = [text == gold for text, gold in zip(solution_strs, ground_truths, strict=True)]
    return [{"score": one / max(1, sum(right)), "right": sum(right), "source": data_sources[0]} for one in right]


def one_too_few(prompt, completions):
    return [0.5] * (len(completions) - 1)


def one_number(prompt, completions):
    return 0.5


def some_missing(prompt, completions):
    return [{"": None, "x": "high"}.get(completion.text, 0.5) for completion in completions]


def tensor_of_group(prompt, completions):
    import numpy as np

    return np.arange(len(completions)) / len(completions)


def unordered(prompt, completions):
    return {0.5, 0.25}


def group_raises(prompt, completions):
    raise KeyError("level")


def group_ends(prompt, completions):
    if any("boxed" not in completion.text for completion in completions):
        os._exit(3)
    return [0.5] * len(completions)


def group_hangs(prompt, completions):
    if any("boxed" not in completion.text for completion in completions):
        time.sleep(60)
    return [0.5] * len(completions)
