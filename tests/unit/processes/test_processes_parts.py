"""Messages in parts: arrays beside the pickle arrive as they were, and are the receiver's own."""

from __future__ import annotations

import socket
import threading

import numpy as np
import pytest

from dapo.processes.large_messages import advance, packed, receive, send, unpacked, with_sizes

LARGE = np.arange(5000, dtype=np.int32)


@pytest.fixture
def ends():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def carried(ends, value):
    sender = threading.Thread(target=send, args=(ends[0], packed(value)))
    sender.start()
    found = unpacked(receive(ends[1]))
    sender.join()
    return found


def test_only_large_arrays_travel_beside_the_pickle():
    few = np.arange(3)
    parts = packed({"few": few, "large": LARGE, "flags": LARGE > 7})
    assert [len(part) for part in parts[1:]] == [20_000, 5_000]
    assert np.shares_memory(np.frombuffer(parts[1], np.int32), LARGE)


def test_more_arrays_than_one_call_moves_arrive_in_order(ends):
    """Of odd sizes, so that no array ends where the connection's memory does."""
    sent = [np.random.default_rng(n).random(513 + n % 7).astype(np.float64) for n in range(1500)]
    found = carried(ends, ("turn", sent))[1]
    assert len(found) == 1500
    assert all(a.tobytes() == b.tobytes() and a.dtype == b.dtype for a, b in zip(sent, found, strict=True))


def test_what_arrived_can_be_written_to(ends):
    found = carried(ends, [LARGE, LARGE[:3]])
    for array in found:
        array[0] = 9
    assert LARGE[0] == 0
    assert [array[0] for array in found] == [9, 9]


def test_columns_of_a_matrix_keep_their_places(ends):
    matrix = np.asfortranarray(np.arange(6000.0).reshape(60, 100))
    assert (carried(ends, matrix) == matrix).all()
    assert (carried(ends, matrix[::2, 1:]) == matrix[::2, 1:]).all()  # not in one piece: within the pickle


@pytest.mark.parametrize("count", [3, 15, 100, 10_000])
def test_an_end_within_a_message_is_no_message(ends, count):
    message = b"".join(bytes(part) for part in with_sizes(packed(LARGE)))
    ends[0].sendall(message[:count])
    ends[0].close()
    with pytest.raises(EOFError):
        receive(ends[1])


@pytest.mark.parametrize(
    ("count", "first", "left"), [(0, 1, b"de"), (1, 1, b"e"), (2, 2, b"fghi"), (5, 2, b"i"), (6, 3, None)]
)
def test_a_view_that_was_moved_in_part_keeps_its_rest(count, first, left):
    views = [memoryview(text) for text in (b"abc", b"de", b"fghi")]
    assert advance(views, 1, count) == first
    assert views[0] == b"abc"
    assert left is None or views[first] == left
