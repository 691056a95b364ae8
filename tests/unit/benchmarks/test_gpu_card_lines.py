"""What the parts of ``make gpu`` do on a card alone, run on a CPU with torch's functions of the card standing in.

Numbers mean nothing here; that every line runs does: a name that is not there would be met on the card, in front of
somebody who has it for ten minutes.
"""

from __future__ import annotations

import inspect
import subprocess
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.nn.attention import varlen

from benchmarks.gpu import speed_decode, speed_learner, speed_plain, speed_step
from benchmarks.gpu.child import call, why_no_card
from benchmarks.gpu.limits import BANDWIDTH, PEAK
from benchmarks.gpu.marked import marked_files
from benchmarks.gpu.plan import PLAN
from benchmarks.gpu.room import Room, Skipped
from benchmarks.gpu.runner import ROOT
from benchmarks.gpu.shapes import PUBLISHED, REHEARSED
from dapo.engines import embedded
from dapo.engines.cache import SlotCache, most_rows
from dapo.engines.graphs import StepGraphs
from dapo.errors import LearnerError
from dapo.models.meter import CudaMeter
from dapo.run import session
from tests.helpers.tape import TapeRecorder

GIB = 2**30
PAPER = {
    "synchronize": lambda device=None: None,
    "empty_cache": lambda: None,
    "reset_peak_memory_stats": lambda device=None: None,
    "memory_allocated": lambda device=None: GIB,
    "max_memory_allocated": lambda device=None: 2 * GIB,
    "mem_get_info": lambda device=None: (100 * GIB, 141 * GIB),
    "get_device_name": lambda device=None: "Card of Paper",
    "get_device_properties": lambda device=None: SimpleNamespace(
        name="Card of Paper", multi_processor_count=132, major=9, minor=0, uuid="00", total_memory=141 * GIB
    ),
    "device_count": lambda: 1,
    "is_bf16_supported": lambda including_emulation=True: True,
    "set_sync_debug_mode": lambda debug_mode: None,
}


class PaperCard(Room):
    """A room that says it is on a card; sizes are a rehearsal's, and so is the device."""

    @property
    def on_card(self):
        return True

    def sized(self, on_card, rehearsed):
        return rehearsed


def kernel(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, scale=None, window_size=(-1, -1), **options):
    """Two sequences, causal from the end, as many key heads as query heads: what the preflight asks of it."""
    parts = []
    for n in range(len(cu_seq_q) - 1):
        q, k, v = (x[c[n] : c[n + 1]].float() for x, c in ((query, cu_seq_q), (key, cu_seq_k), (value, cu_seq_k)))
        seen = torch.ones(len(q), len(k), dtype=torch.bool).tril(len(k) - len(q))
        weights = (torch.einsum("qhd,khd->hqk", q, k) * scale).masked_fill(~seen, -torch.inf).softmax(-1)
        parts.append(torch.einsum("hqk,khd->qhd", weights, v))
    return torch.cat(parts).to(query.dtype)


@pytest.fixture
def paper(monkeypatch):
    for name, stand_in in PAPER.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(varlen, "varlen_attn", kernel)
    for module in (speed_decode, speed_learner, speed_plain, speed_step):
        monkeypatch.setattr(module, "PUBLISHED", dict.fromkeys(PUBLISHED, REHEARSED))

    def by_tape(wanted, decoder, rows, like):
        return None if wanted is False else StepGraphs(TapeRecorder(), most_rows(rows), like)

    monkeypatch.setattr(embedded, "make_graphs", by_tape)
    monkeypatch.setattr(embedded, "SlotCache", partial(SlotCache, fixed=True))
    monkeypatch.setattr(session, "meter_of", CudaMeter)


QUICK = {"preflight", "card_limits", "float32_memory"}
SHOWN = [part for part in PLAN if "vllm" not in part.needs and part.name != "marked_tests"]


def run_on_paper(part, folder):
    measured = [{"part": "card_limits", "what": what, "value": 1e12} for what in (BANDWIDTH, PEAK)]
    room = PaperCard("cpu", folder, before=measured)
    call(part, room)
    return {row["what"]: row["value"] for row in room.rows}


@pytest.mark.parametrize("part", [part for part in SHOWN if part.name in QUICK], ids=lambda part: part.name)
def test_the_lines_of_a_card_run(part, paper, tmp_path):
    assert run_on_paper(part, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("part", [part for part in SHOWN if part.name not in QUICK], ids=lambda part: part.name)
def test_the_lines_of_a_card_run_in_longer_parts(part, paper, tmp_path):
    found = run_on_paper(part, tmp_path)
    assert found
    if part.name.startswith("decode"):
        assert found["embedded over generate, 8 rows"] > 0
        assert any("replays" in what for what in found)
    if part.name == "plain_step":
        assert {"learn: peak memory", "generate: peak over estimate"} <= found.keys()
        assert 0 < found["step 2: decode steps that were replays, share"] < 1
    if part.name == "dapo_step":
        assert found["peak memory"] == 2 * GIB
        assert {"peak memory in generate", "peak memory in learn"} <= found.keys()


@pytest.mark.slow
def test_a_step_that_the_card_cannot_hold_is_left_out(paper, monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (2**20, 2**20))
    with pytest.raises(Skipped, match=r"dapo check expects \d+ GiB, the card has 0"):
        speed_step.dapo_step(PaperCard("cpu", tmp_path))


def test_a_card_that_torch_cannot_use_is_told_with_the_reason(monkeypatch):
    def too_old():
        raise RuntimeError("The NVIDIA driver on your system is too old (found version 12020).\nPlease update")

    monkeypatch.setattr(torch.cuda, "init", too_old)
    said = why_no_card()
    assert said == f"torch {torch.__version__}: The NVIDIA driver on your system is too old (found version 12020)."


@pytest.mark.parametrize("name", sorted(PAPER))
def test_what_stands_in_takes_what_torchs_own_takes(name):
    own, paper = (inspect.signature(function).parameters for function in (getattr(torch.cuda, name), PAPER[name]))
    assert [*paper] == [*own]


def test_the_marked_tests_are_those_of_files_with_the_mark():
    mark = "@pytest" + ".mark.gpu"  # in one piece it would make this file one of them
    found = marked_files()
    assert Path("tests/unit/models/test_models_policy.py") in found
    assert all(mark in (ROOT / path).read_text() and path.parts[:2] != ("tests", "gpu") for path in found)


def test_the_marked_tests_report_what_pytest_says(monkeypatch, tmp_path):
    ended = subprocess.CompletedProcess([], 1, stdout="FAILED tests/x.py::y\n1 failed\n", stderr="")
    monkeypatch.setattr(subprocess, "run", lambda *args, **options: ended)
    room = PaperCard("cpu", tmp_path, ends=float("inf"))
    call(next(part for part in PLAN if part.name == "marked_tests"), room)
    assert room.rows[0]["value"] == "1 failed"
    assert room.failed == ["all passed: not so (FAILED tests/x.py::y)"]


@pytest.mark.parametrize("told", ["by the learner", "by torch"])
def test_layers_that_do_not_fit_are_told_and_fewer_are_timed(told, paper, monkeypatch, tmp_path):
    tried = []

    def step(room, shape, rows, tokens, checkpointing, name):
        tried.append((checkpointing, shape.layers))
        if not checkpointing and shape.layers == REHEARSED.layers:
            full = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
            if told == "by torch":
                raise full
            raise LearnerError("the device has too little memory for a pass") from full
        return 2.0

    monkeypatch.setattr(speed_learner, "_step", step)
    room = PaperCard("cpu", tmp_path, before=[{"part": "card_limits", "what": PEAK, "value": 1e12}])
    speed_learner.learn(room, "7b")
    assert tried == [(False, 2), (False, 1), (True, 2)]
    assert len(room.failed) == 1
    assert "fits, as estimated" in room.failed[0]
    found = {row["what"]: row["value"] for row in room.rows}
    fewer, whole = (found[f"{name} checkpointing: operations needed"] for name in ("without", "with"))
    assert fewer < whole


def test_a_gradient_that_is_not_finite_is_not_taken_for_a_lack_of_memory(paper, monkeypatch, tmp_path):
    def step(*args):
        raise LearnerError("optimiser steps in a row had a gradient that is not finite")

    monkeypatch.setattr(speed_learner, "_step", step)
    with pytest.raises(LearnerError, match="not finite"):
        speed_learner.learn(PaperCard("cpu", tmp_path), "7b")
