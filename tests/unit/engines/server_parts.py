"""What the tests of the server engine share: engines over stand-ins, and what they are asked."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from stand_in_server import StandIn
from tickets import in_folder

from dapo.engines.vllm_server import ServerEngine
from dapo.types.enums import FinishReason

_published = tempfile.TemporaryDirectory(prefix="dapo-test-weights-")  # until the tests end


def load(engine, version, value, **options):
    """Publish ``value`` as a learner does, and load it."""
    engine.load(in_folder(version, {"value": torch.tensor(float(value))}, _published.name), **options)


@contextmanager
def building(tmp_path) -> Iterator:
    """Makes a server and an engine that has published version 1 (the number 1)."""
    made = []

    def build(
        published=1,
        slots=16,
        patience=120.0,
        heartbeat=5.0,
        longest=60,
        vocabulary=40,
        api_key=None,
        strings=None,
        **options,
    ):
        server = StandIn(**options)
        made.append(server)
        engine = ServerEngine(
            server.address, "runs/one",
            vocabulary=vocabulary, longest=longest, slots=slots,
            patience=patience, heartbeat=heartbeat, api_key=api_key, strings=strings,
        )  # fmt: skip
        made.append(engine)
        if published is not None:
            load(engine, published, published)
        return server, engine

    try:
        yield build
    finally:
        _end(made)


def _end(made):
    for one in reversed(made):
        if isinstance(one, StandIn):
            one.kill()
        else:
            one.close()


def drain(engine, count):
    """Poll until ``count`` responses have ended, and see that none ends twice and none is left."""
    events = []
    while len(events) < count:
        came = engine.poll(120.0)
        assert came, f"{len(events)} of {count} came"
        events += came
    assert engine.poll() == []
    assert len({event.key for event in events}) == len(events) == count
    return {event.key: event for event in events}


def wait_for(condition):
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def requests(help, groups=3, size=2, **options):
    return [
        help.request(g, i, **{"stop_token_ids": (), "max_tokens": 8} | options)
        for g in range(groups)
        for i in range(size)
    ]


def finish_under(events, value, version):
    assert {event.finish for event in events.values()} == {FinishReason.LENGTH}
    for event in events.values():
        assert event.logprobs.tolist() == [-float(value)] * 8
        assert event.versions.tolist() == [version] * 8
