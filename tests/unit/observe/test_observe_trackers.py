import math
import subprocess
import sys
import types

import pytest

from dapo.observe.trackers import Trackers, open_trackers


class Fake:
    name = "fake"

    def __init__(self, fails_at=None):
        self.logged, self.closed, self.fails_at = [], 0, fails_at

    def log(self, step, metrics):
        if step == self.fails_at:
            raise ConnectionError("no network")
        self.logged.append((step, metrics))

    def state(self):
        return {"id": "x"}

    def close(self):
        self.closed += 1


def test_metrics_reach_every_tracker_without_what_is_not_finite():
    fakes, warned = [Fake(), Fake()], []
    trackers = Trackers([("fake", lambda f=f: f) for f in fakes], warned.append)
    trackers.log(1, {"train/loss": 1, "a": math.nan, "b": math.inf, "c": None})
    assert trackers.state() == {"fake": {"id": "x"}}
    trackers.close()
    assert [f.logged for f in fakes] == [[(1, {"train/loss": 1.0})]] * 2
    assert [f.closed for f in fakes] == [1, 1]
    assert warned == []


def test_a_tracker_that_fails_is_named_once_and_left_out():
    bad, good, warned = Fake(fails_at=2), Fake(), []
    trackers = Trackers([("fake", lambda: bad), ("fake", lambda: good)], warned.append)
    for step in (1, 2, 3):
        trackers.log(step, {})
    assert [step for step, _ in bad.logged] == [1]
    assert [step for step, _ in good.logged] == [1, 2, 3]
    assert len(warned) == 1
    assert "ConnectionError: no network" in warned[0]


def test_a_tracker_that_cannot_start_is_left_out():
    def broken():
        raise RuntimeError("no key")

    warned = []
    trackers = Trackers([("fake", broken)], warned.append)
    trackers.log(1, {})
    trackers.close()
    assert len(warned) == 1
    assert "no key" in warned[0]


def options(tmp_path, warned, **more):
    plain = {"tensorboard": None, "wandb_project": None, "run_name": "r", "config": {"a": 1}, "folder": tmp_path}
    return plain | {"warn": warned.append} | more


def test_a_missing_client_tells_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    warned = []
    open_trackers(**options(tmp_path, warned, wandb_project="p")).log(1, {})
    assert len(warned) == 1
    assert "pip install 'dapo-rl[track]'" in warned[0]


def test_none_is_opened_unless_asked_for(tmp_path):
    trackers = open_trackers(**options(tmp_path, []))
    trackers.log(1, {"train/loss": 1.0})
    trackers.close()
    assert list(tmp_path.iterdir()) == []


def scalars(folder):
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = event_accumulator.EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_tensorboard_events_and_a_resume_that_hides_later_steps(tmp_path):
    pytest.importorskip("tensorboard")
    folder, warned = tmp_path / "tensorboard", []
    trackers = open_trackers(**options(tmp_path, warned, tensorboard=folder))
    for step in (1, 2, 3):
        trackers.log(step, {"train/loss": step / 2, "validation/accuracy": math.nan})
    trackers.close()
    assert scalars(folder) == {"train/loss": [(1, 0.5), (2, 1.0), (3, 1.5)]}
    (first,) = folder.iterdir()
    first.rename(folder / "events.out.tfevents.0000000001.first")  # read before the second, whatever the clock says
    trackers = open_trackers(**options(tmp_path, warned, tensorboard=folder, first_step=1))
    trackers.log(2, {"train/loss": 8.0})
    trackers.close()
    assert scalars(folder) == {"train/loss": [(1, 0.5), (2, 8.0)]}
    assert warned == []


def test_observing_needs_no_torch():
    code = (
        "import sys, pkgutil, importlib, dapo.observe as o\n"
        "[importlib.import_module(m.name) for m in pkgutil.iter_modules(o.__path__, 'dapo.observe.')]\n"
        "from dapo.observe.trackers import TensorBoardTracker; from pathlib import Path; import tempfile\n"
        "try: TensorBoardTracker(Path(tempfile.mkdtemp())).close()\n"
        "except ImportError: pass\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_wandb_run_goes_on_under_its_saved_id(tmp_path, monkeypatch):
    calls = []

    class Run:
        id = "abc123"

        def define_metric(self, *args, **kwargs):
            calls.append(("define", args, kwargs))

        def log(self, data):
            calls.append(("log", data))

        def finish(self):
            calls.append(("finish",))

    def init(**kwargs):
        calls.append(("init", kwargs))
        return Run()

    wandb = types.SimpleNamespace(init=init, Settings=lambda **kwargs: kwargs)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    warned = []
    first = open_trackers(**options(tmp_path, warned, wandb_project="p"))
    state = first.state()
    assert state == {"wandb": {"id": "abc123"}}
    assert (calls[0][1]["id"], calls[0][1]["resume"], calls[0][1]["project"]) == (None, None, "p")
    calls.clear()
    second = open_trackers(**options(tmp_path, warned, wandb_project="p", state=state))
    second.log(4, {"train/loss": 1.0})
    second.close()
    assert (calls[0][1]["id"], calls[0][1]["resume"]) == ("abc123", "allow")
    assert calls[-2:] == [("log", {"step": 4, "train/loss": 1.0}), ("finish",)]
    assert warned == []
