"""Requests for episodes, and a mailbox that plays them to their ends."""

from __future__ import annotations

import numpy as np

from dapo.types.batch import Key, Prompt, SampleRequest, SamplingParams

CHAT = {"messages": [{"role": "user", "content": "w5 w6"}], "tools": []}
PROMPT = Prompt("id", "w5 w6", np.array([5, 6]), "problem", "7", "source", chat=CHAT)
STOPS = (7, 11, 20, 31)
LIMIT = 60


def requests(count=6, limit=LIMIT, stop=(), prefixes=None):
    sampling = SamplingParams(max_tokens=limit, stop_token_ids=() if stop else STOPS, stop=stop)
    return [
        SampleRequest(Key("train", n, 0), PROMPT.token_ids, sampling, 7 * n + 1, (prefixes or {}).get(n), priority=n)
        for n in range(count)
    ]


def drain(subject, asked):
    """Return the responses by group; at their end nothing is under way, lost, or held by the engine."""
    subject.submit(asked, lambda key: PROMPT)
    found = {}
    while len(found) < len(asked):
        assert subject.pump(), "nothing is lost"
        found |= {one.key.group: one for one in subject.ended("train")}
    assert subject.under_way("train") == 0
    assert not subject.lost("train")
    assert_no_slot_is_kept(subject)
    return found


def assert_no_slot_is_kept(subject):
    assert not getattr(subject.engine, "kept", ())
    assert not subject._kept
