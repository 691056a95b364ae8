"""A thinking budget over any engine: what is closed by force, what of it counts, and what the embedded engine makes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from learner_rows import make_algorithm, rows_of
from vllm_parts import true_logprobs

from dapo.config.load import recipe_from_dict
from dapo.engines.embedded import EmbeddedEngine
from dapo.loop.sampling.rollouts import Rollouts
from dapo.run.decoding import make_texts
from dapo.types.batch import Group, Key, Prompt, SampleRequest, SamplingParams, Score
from dapo.types.enums import FinishReason

BUDGET, LIMIT = 6, 20
OPEN, CLOSE = "+8", "-9"
FORCED = f"=1 {CLOSE} =2"  # a word on either side of the tag: more than one token, and the tag not the last


def check_thinking(engine, loaded, version, close):
    """By ``engine``, which has ``loaded``'s weights of ``version``; log-probabilities within ``close`` nats."""
    texts = texts_of(loaded)
    assert texts.thinking.forced.tolist() == loaded.tokenizer.convert_tokens_to_ids(FORCED.split())
    prompts = [loaded.tokenizer(f"{n % 9 + 1} +{n % 7 + 1} = {OPEN if n % 3 else ''}")["input_ids"] for n in range(18)]
    for temperature in (0.0, 0.8):
        found = answers(engine, texts, prompts, loaded, temperature)
        assert sum(one.generated is not None for one in found) >= 6
        assert sum(one.generated is None for one in found) >= 3
        assert sum(one.generated is not None and one.closed and one.answer != "" for one in found) >= 6
        for prompt, one in zip(prompts, found, strict=True):
            check_one(one, prompt, texts, loaded, version, temperature or 1.0, close)
        if temperature == 0:  # of two engines with numbers of their own the greedy tokens alone can be equal
            own = EmbeddedEngine(loaded, slots=8)
            for one, other in zip(found, answers(own, texts, prompts, loaded, temperature), strict=True):
                same_completion(one, other, close)
    check_rows(found)


THINKING = {"enabled": True, "open": OPEN, "close": CLOSE, "budget": BUDGET, "end": FORCED}


def texts_of(loaded):
    recipe = {
        "model": {"path": loaded.name},
        "data": {"train": [{"task": "signed_sum"}], "thinking": THINKING},
        "rollout": {"max_response_tokens": LIMIT},
    }
    return make_texts(recipe_from_dict(recipe).recipe, loaded.tokenizer)


def answers(engine, texts, prompts, loaded, temperature):
    """One completion of each prompt, in their order."""
    rollouts = Rollouts(engine, None, texts)
    sampling = SamplingParams(max_tokens=LIMIT, temperature=temperature, stop_token_ids=loaded.stop_token_ids)
    rollouts.submit(
        [SampleRequest(Key("train", n, 0), np.array(ids), sampling, n + 1) for n, ids in enumerate(prompts)]
    )
    found = {}
    while rollouts.pump():
        found |= {one.key.group: one for one in rollouts.ended("train")}
    assert rollouts.lost("train") == []
    assert found.keys() == set(range(len(prompts)))
    return [found[n] for n in range(len(prompts))]


def check_one(one, prompt, texts, loaded, version, temperature, close):
    forced, count = texts.thinking.forced, len(texts.thinking.forced)
    true = true_logprobs(loaded, np.array(prompt), one.token_ids, temperature)
    assert len(one.token_ids) == len(one.logprobs) == len(one.versions) <= LIMIT
    assert set(one.versions.tolist()) == {version}
    body = one.token_ids[:-1] if one.finish is FinishReason.STOP else one.token_ids
    assert one.text == loaded.tokenizer.decode(body.tolist(), skip_special_tokens=True)
    if one.generated is None:
        np.testing.assert_allclose(one.logprobs, true, atol=close)
        return
    mask = np.ones(len(one), dtype=bool)
    mask[BUDGET : BUDGET + count] = False
    np.testing.assert_array_equal(one.generated, mask)
    np.testing.assert_array_equal(one.token_ids[BUDGET : BUDGET + count], forced)
    np.testing.assert_array_equal(one.logprobs[~mask], np.zeros(count))
    np.testing.assert_allclose(one.logprobs[mask], true[mask], atol=close)  # the answer's behind the forced tokens
    assert texts.thinking.begun(np.array(prompt)) or OPEN in one.text
    assert len(one) > BUDGET + count
    last = max(n for n, token in enumerate(body) if token == forced[1])  # the tag; an answer may hold it again
    rest = loaded.tokenizer.decode(body[last + 1 :].tolist(), skip_special_tokens=True).split()
    assert last >= BUDGET + 1
    assert one.closed == (OPEN not in rest)  # and may begin to think again
    assert one.thinking == (last + 1 if one.closed else len(one))
    assert one.answer.split() == (rest if one.closed else [])


def same_completion(one, other, close):
    np.testing.assert_array_equal(one.token_ids, other.token_ids)
    np.testing.assert_allclose(one.logprobs, other.logprobs, atol=close)
    assert (one.generated is None) == (other.generated is None)
    if one.generated is not None:
        np.testing.assert_array_equal(one.generated, other.generated)
    assert (one.finish, one.text, one.answer, one.thinking, one.closed) == (
        other.finish, other.text, other.answer, other.thinking, other.closed
    )  # fmt: skip


def check_rows(completions):
    """In training the forced tokens carry no loss, and all others do."""
    scores = [Score({"accuracy": 1.0}, float(n % 2)) for n in range(len(completions))]
    group = Group(0, Prompt("p", "", np.array([3, 4]), "", "", "s"), completions, scores)
    for row, one in zip(
        rows_of([group], replace(make_algorithm(), overlong_filtering=False)), completions, strict=True
    ):
        expected = np.ones(len(one), dtype=bool) if one.generated is None else one.generated
        np.testing.assert_array_equal(row.loss_mask, expected)
        np.testing.assert_array_equal(row.loss_weights() > 0, expected)
