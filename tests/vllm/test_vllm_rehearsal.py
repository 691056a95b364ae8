"""The parts of ``make gpu`` that need vLLM, at small sizes on a CPU."""

from __future__ import annotations

import pytest

from benchmarks.gpu.child import call
from benchmarks.gpu.plan import PLAN
from benchmarks.gpu.room import Room

pytestmark = pytest.mark.vllm


@pytest.mark.parametrize("part", [part for part in PLAN if "vllm" in part.needs], ids=lambda part: part.name)
def test_a_part_for_vllm(part, tmp_path):
    room = Room("cpu", tmp_path)
    call(part, room)
    assert room.rows
    assert room.failed == []
