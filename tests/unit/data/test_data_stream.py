"""The prompt stream: every prompt once per epoch, and resumable anywhere."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dapo.data import EpochStream
from dapo.errors import DataError
from dapo.types.batch import Prompt, content_id


def prompts(count: int, prefix: str = "p") -> list[Prompt]:
    texts = [f"{prefix}{i}" for i in range(count)]
    return [Prompt(content_id(t), t, np.arange(2), t, "", "set") for t in texts]


def texts(taken: list[Prompt]) -> list[str]:
    return [prompt.text for prompt in taken]


sizes = st.integers(1, 17)


@given(
    sizes, st.integers(0, 2**63), st.booleans(), st.none() | st.integers(1, 4), st.lists(st.integers(0, 9)), st.data()
)
def test_resumed_anywhere_it_goes_on_as_if_never_stopped(
    count: int, seed: int, shuffle: bool, epochs: int | None, takes: list[int], data: st.DataObject
) -> None:
    items = prompts(count)

    def fresh() -> EpochStream:
        return EpochStream(items, seed=seed, shuffle=shuffle, epochs=epochs)

    whole = fresh()
    expected = [texts(whole.take(n)) for n in takes]
    stop = data.draw(st.integers(0, len(takes)))
    first = fresh()
    for n in takes[:stop]:
        first.take(n)
    resumed = fresh()
    resumed.take(data.draw(st.integers(0, 5)))  # loading replaces whatever it did before
    resumed.load(json.loads(json.dumps(first.state())))
    assert [texts(resumed.take(n)) for n in takes[stop:]] == expected[stop:]
    assert resumed.state() == whole.state()


@given(sizes, st.integers(0, 2**63), st.booleans(), st.integers(1, 9), st.integers(1, 3))
def test_every_prompt_once_per_epoch_and_then_the_end(
    count: int, seed: int, shuffle: bool, take: int, epochs: int
) -> None:
    stream = EpochStream(prompts(count), seed=seed, shuffle=shuffle, epochs=epochs)
    got: list[str] = []
    while chunk := stream.take(take):
        assert len(chunk) == take or len(got) + len(chunk) == count * epochs
        got += texts(chunk)
    assert stream.take(1) == []
    assert stream.progress == epochs
    everything = sorted(texts(prompts(count)))
    for epoch in range(epochs):
        assert sorted(got[epoch * count : (epoch + 1) * count]) == everything


def test_the_order_is_pinned() -> None:
    """A resumed run on another machine or numpy must see this very order."""
    stream = EpochStream(prompts(8), seed=1)
    assert texts(stream.take(8)) == PINNED[0]
    assert texts(stream.take(8)) == PINNED[1]


PINNED = (
    ["p3", "p5", "p2", "p7", "p0", "p6", "p1", "p4"],
    ["p0", "p6", "p5", "p3", "p4", "p7", "p2", "p1"],
)


def test_seeds_and_epochs_differ_and_no_shuffle_keeps_the_order() -> None:
    orders = {tuple(texts(EpochStream(prompts(50), seed=seed).take(50))) for seed in range(20)}
    assert len(orders) == 20
    stream = EpochStream(prompts(50), seed=0)
    assert texts(stream.take(50)) != texts(stream.take(50))
    plain = EpochStream(prompts(5), seed=0, shuffle=False)
    assert texts(plain.take(7)) == ["p0", "p1", "p2", "p3", "p4", "p0", "p1"]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (EpochStream(prompts(9), seed=1), "the training data"),
        (EpochStream(prompts(8, "q"), seed=1), "the training data"),
        (EpochStream(prompts(8)[::-1], seed=1), "the training data"),
        (EpochStream(prompts(8), seed=2), "`run.seed` was 2, now it is 1"),
        (EpochStream(prompts(8), seed=1, shuffle=False), "`data.shuffle` was False"),
    ],
)
def test_a_position_in_other_data_is_refused(other: EpochStream, message: str) -> None:
    stream = EpochStream(prompts(8), seed=1)
    stream.take(3)
    before = stream.state()
    with pytest.raises(DataError, match=message):
        stream.load(other.state())
    assert stream.state() == before


def test_no_prompts_are_refused() -> None:
    with pytest.raises(DataError, match="at least one prompt"):
        EpochStream([], seed=0)
