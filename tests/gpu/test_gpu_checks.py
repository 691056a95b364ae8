"""The checks of ``make gpu``, one test each."""

from __future__ import annotations

import pytest
import torch

from benchmarks.gpu.child import call, installed, tidy
from benchmarks.gpu.plan import PLAN
from benchmarks.gpu.room import Room, Skipped

# the preflight first; ``marked_tests`` would run these very tests
CHECKS = [part for part in PLAN if part.kind != "benchmark" and part.name != "marked_tests"]


@pytest.mark.gpu
@pytest.mark.parametrize("part", CHECKS, ids=lambda part: part.name)
def test_a_check_of_make_gpu(part, tmp_path):
    if not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device here")
    if missing := [name for name in part.needs if not installed(name)]:
        pytest.skip(f"not installed here: {', '.join(missing)}")
    room = Room("cuda", tmp_path)
    try:
        call(part, room)
    except Skipped as skipped:
        pytest.skip(str(skipped))
    finally:
        tidy("cuda")
    assert room.rows
    assert room.failed == []
