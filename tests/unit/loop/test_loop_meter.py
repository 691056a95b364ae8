"""Phases of a device that goes on with its work: whose seconds and whose memory they are. The device is a stand-in."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from scripted_run import Recording, make_run

from dapo.metrics.phases import COMPUTING, Phases
from dapo.models import meter
from dapo.models.meter import CudaMeter, meter_of

MIB = 2**20


class Device:
    """Work takes no time of the host until it is waited for."""

    def __init__(self):
        self.now, self.owed, self.held, self.most = 0.0, 0.0, 0, 0
        self.settled = 0

    def clock(self):
        return self.now

    def works(self, seconds, most=0, stays=0):
        """Asked to work for so long; meanwhile it holds ``most`` MiB at once, and ``stays`` afterwards."""
        self.owed += seconds
        self.most = max(self.most, self.held, most)
        self.held = stays

    def settle(self):
        self.settled += 1
        self.now += self.owed
        self.owed = 0.0

    def peak(self):
        found, self.most = max(self.most, self.held), self.held
        return found * MIB


@pytest.fixture
def device():
    return Device()


def test_kernels_count_for_the_phase_that_asked_for_them(device):
    phases = Phases(clock=device.clock, meter=device)
    with phases("learn"):
        device.now += 1
        device.works(8)
    with phases("report"):
        device.now += 2
    with phases("publish"):
        device.works(4)
    assert phases.take() == {
        "time/learn": 9.0, "time/other": 0.0, "time/publish": 4.0, "time/report": 2.0, "time/step": 15.0,
    }  # fmt: skip
    assert device.settled == 2


def test_without_a_meter_they_land_wherever_somebody_waits_next(device):
    """What the test above would find in a program that does not wait."""
    phases = Phases(clock=device.clock)
    with phases("learn"):
        device.works(8)
    with phases("report"):
        device.settle()
    assert phases.take() == {"time/learn": 0.0, "time/other": 0.0, "time/report": 8.0, "time/step": 8.0}
    assert phases.peaks() == {}


def test_memory_is_that_of_the_phase_and_of_the_step(device):
    phases = Phases(clock=device.clock, meter=device)
    for _ in range(3):  # generation and scoring take turns
        with phases("generate"):
            device.works(1, most=300, stays=200)
        with phases("score"):
            pass
    with phases("learn"):
        device.works(1, most=900, stays=500)
        with phases("report"):  # inside another one: its work is that one's
            device.works(1, most=1000, stays=500)
    with phases("publish"):
        device.works(1, most=510, stays=100)
    name = "memory/peak_cuda_mib"
    assert phases.peaks() == {f"{name}/generate": 300, f"{name}/learn": 1000, f"{name}/publish": 510, name: 1000}
    device.works(1, most=700, stays=100)  # between two steps: nobody's, and the step's all the same
    with phases("generate"):
        device.works(1, most=150, stays=120)
    assert phases.peaks() == {f"{name}/generate": 150, name: 700}


@pytest.mark.parametrize("steps", [3])
def test_a_run_waits_three_times_a_step_at_most_and_tells_its_peaks(device, tmp_path, steps):
    run = make_run(tmp_path, steps=steps, evaluate_every=1)
    run.trainer.phases._meter = device
    load, learn = run.engine.load, run.learner.learn
    run.engine.load = lambda *given: (device.works(1, most=40, stays=30), load(*given))[1]
    run.learner.learn = lambda *given: (device.works(1, most=90, stays=30), learn(*given))[1]
    assert run()
    assert isinstance(run.recorder, Recording)  # which refuses keys without a line in the glossary
    rows = [run.recorder.rows[step] for step in range(1, steps + 1)]
    for row in rows:
        assert {name: row[f"memory/peak_cuda_mib/{name}"] for name in COMPUTING} == {
            "generate": 30, "learn": 90, "publish": 40, "evaluate": 30,
        }  # fmt: skip
        assert row["memory/peak_cuda_mib"] == 90
    # learn, publish and evaluate of each step, and the publish and evaluation before the first
    assert device.settled == 3 * steps + 2


def test_a_cpu_tells_nothing(tmp_path):
    assert meter_of(torch.device("cpu")) is None
    assert meter_of(None) is None
    run = make_run(tmp_path, steps=1)
    run()
    assert not [key for key in run.recorder.rows[1] if "cuda" in key]


def test_the_meter_of_a_card_asks_torch(monkeypatch):
    """Calls alone: torch without CUDA."""
    called, device = Counter(), torch.device("cuda")
    for name, answer in (("synchronize", None), ("max_memory_allocated", 5 * MIB), ("reset_peak_memory_stats", None)):
        monkeypatch.setattr(
            meter.torch.cuda,
            name,
            lambda d, name=name, answer=answer: called.update([name]) or (d == device and answer),
        )
    found = meter_of(device)
    assert isinstance(found, CudaMeter)
    assert called == {"reset_peak_memory_stats": 1}
    assert found.peak() == 5 * MIB
    found.settle()
    assert called == {"reset_peak_memory_stats": 2, "max_memory_allocated": 1, "synchronize": 1}
