import math
import subprocess
import sys
import types

import numpy as np
import pytest

from dapo.config.schema import TrackerSettings
from dapo.errors import RecipeError
from dapo.observe.callbacks import Callbacks
from dapo.observe.trackers import make_trackers
from dapo.types.batch import Group, Key, Prompt, Response, Score
from dapo.types.enums import FinishReason
from dapo.types.evaluation import EvaluationResult
from dapo.types.events import StartEvent, StepEvent


def events(tmp_path, first_step=0, state=None):
    config = {"run": {"name": "r"}, "trainer": {"steps": 3}}
    return StartEvent("r", tmp_path, first_step, 3, config), state or {}


def made(*settings):
    return make_trackers([TrackerSettings.model_validate(one) for one in settings])


def opened(tmp_path, warned, names=(), first_step=0, state=None):
    callbacks = Callbacks(made(*names), warned.append)
    callbacks.start(*events(tmp_path, first_step, state))
    return callbacks


def test_named_trackers_get_numbers_by_further_names(tmp_path):
    (tracker,) = make_trackers(
        [TrackerSettings(kind="tensorboard")], lambda numbers: {"train/filtered_reward": numbers["a"]}
    )
    assert tracker.numbers(StepEvent(1, {"a": 2.0, "b": None})) == {"a": 2.0, "train/filtered_reward": 2.0}


def evaluated(text="the answer"):
    ids = np.arange(3)
    key = Key("evaluate", 0, 0)
    done = Response(ids, np.zeros(3, np.float32), np.zeros(3, np.int32), FinishReason.STOP, text, key=key)
    prompt = Prompt("id", "2 + 2 =", ids, "2 + 2", "4", "held")
    return EvaluationResult(
        {"validation/accuracy": 1.0}, {"held": [Group(0, prompt, [done], [Score({"accuracy": 1.0}, 1.0)])]}
    )


def test_a_missing_client_tells_how_to_install_it(tmp_path, monkeypatch):
    for name, said in (
        ("wandb", "'wandb>="),
        ("mlflow", "pip install mlflow"),
        ("trackio", "pip install trackio"),
    ):
        monkeypatch.setitem(sys.modules, name, None)
        warned = []
        opened(tmp_path, warned, [name]).step(1, {}, [])
        assert len(warned) == 1
        assert said in warned[0]


def test_a_client_that_lacks_a_module_of_its_own_is_not_called_missing(tmp_path, monkeypatch):
    (tmp_path / "wandb.py").write_text("import a_module_that_is_nowhere.inside\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    warned = []
    opened(tmp_path, warned, ["wandb"])
    assert warned == [
        "wandb needs the module a_module_that_is_nowhere, which is not installed; training goes on without it. "
        "Install that module, or wandb again."
    ]


def test_none_is_opened_unless_asked_for(tmp_path):
    trackers = opened(tmp_path, [])
    trackers.step(1, {"train/loss": 1.0}, [])
    trackers.end(True)
    assert list(tmp_path.iterdir()) == []


def scalars(folder):
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = event_accumulator.EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_tensorboard_events_and_a_resume_that_hides_later_steps(tmp_path):
    pytest.importorskip("tensorboard")
    folder, warned = tmp_path / "tensorboard", []
    trackers = opened(tmp_path, warned, ["tensorboard"])
    for step in (1, 2, 3):
        trackers.step(step, {"train/loss": step / 2, "validation/accuracy": math.nan}, [])
    trackers.end(True)
    assert scalars(folder) == {"train/loss": [(1, 0.5), (2, 1.0), (3, 1.5)]}
    (first,) = folder.iterdir()
    first.rename(folder / "events.out.tfevents.0000000001.first")  # read before the second, whatever the clock says
    trackers = opened(tmp_path, warned, ["tensorboard"], first_step=1)
    trackers.step(2, {"train/loss": 8.0}, [])
    trackers.end(True)
    assert scalars(folder) == {"train/loss": [(1, 0.5), (2, 8.0)]}
    assert warned == []


@pytest.mark.whole
def test_observing_needs_no_torch():
    code = (
        "import sys, pkgutil, importlib, dapo.observe as o\n"
        "[importlib.import_module(m.name) for m in pkgutil.iter_modules(o.__path__, 'dapo.observe.')]\n"
        "from dapo.observe.trackers import TensorBoardTracker; from dapo.types.events import *; import tempfile\n"
        "try: TensorBoardTracker().start(StartEvent('r', Path(tempfile.mkdtemp()), 0, 1, {}))\n"
        "except ImportError: pass\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


class Calls:
    """A small fake of a client's public calls: keeps them, and answers with what it was told to."""

    def __init__(self, **answers):
        self.made, self._answers = [], answers

    def __getattr__(self, name):
        def call(*args, **kwargs):
            self.made.append((name, args, kwargs))
            return self._answers.get(name, self)

        return call

    def of(self, name):
        return [(args, kwargs) for called, args, kwargs in self.made if called == name]


def test_wandb_run_goes_on_under_its_saved_id_and_shows_answers(tmp_path, monkeypatch):
    run = Calls()
    run.id = "abc123"
    wandb = Calls(init=run)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    warned = []
    first = opened(tmp_path, warned, [{"kind": "wandb", "project": "p"}])
    state = first.state()
    assert state == {"wandb": {"id": "abc123"}}
    ((_, options),) = wandb.of("init")
    assert (options["id"], options["resume"], options["project"], options["name"]) == (None, None, "p", "r")
    wandb.made.clear()
    second = opened(tmp_path, warned, ["wandb"], first_step=3, state=state)
    second.step(4, {"train/loss": 1.0, "bad": math.inf}, [])
    second.evaluation(4, evaluated())
    second.end(True)
    ((_, options),) = wandb.of("init")
    assert (options["id"], options["resume"], options["project"]) == ("abc123", "allow", "dapo")
    ((_, table),) = wandb.of("Table")
    row = dict(zip(table["columns"], table["data"][0], strict=True))
    said = {"step": 4, "set": "held", "problem": "2 + 2", "gold answer": "4", "response": "the answer"}
    assert row == said | {"accuracy": 1.0, "tokens": 3, "truncated": False, "greedy": False}
    logged = [args[0] for args, _ in run.of("log")]
    assert logged[0] == {"step": 4, "train/loss": 1.0}
    assert set(logged[1]) == {"step", "answers"}
    assert run.of("finish") == [((), {"exit_code": 0})]
    assert warned == []


def test_mlflow_run_goes_on_under_its_saved_id(tmp_path, monkeypatch):
    mlflow = Calls(start_run=types.SimpleNamespace(info=types.SimpleNamespace(run_id="r1")))
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    warned = []
    first = opened(tmp_path, warned, [{"kind": "mlflow", "project": "sums"}])
    state = first.state()
    assert state == {"mlflow": {"id": "r1"}}
    assert mlflow.of("set_experiment") == [(("sums",), {})]
    assert mlflow.of("start_run") == [((), {"run_id": None, "run_name": "r"})]
    assert mlflow.of("log_params") == [(({"run.name": "r", "trainer.steps": "3"},), {})]
    mlflow.made.clear()
    second = opened(tmp_path, warned, ["mlflow"], first_step=1, state=state)
    second.step(2, {"validation/pass@4": 0.5, "bad": math.nan}, [])
    second.evaluation(2, evaluated())
    second.end(False, "SamplingStopped: ...")
    assert mlflow.of("start_run") == [((), {"run_id": "r1", "run_name": None})]
    assert mlflow.of("log_params") == []
    assert mlflow.of("log_metrics") == [(({"validation/pass_4": 0.5},), {"step": 2})]
    ((columns,), where) = mlflow.of("log_table")[0]
    assert columns["response"] == ["the answer"]
    assert where == {"artifact_file": "answers/step_000002.json"}
    assert mlflow.of("end_run") == [(("FAILED",), {})]
    assert warned == []


def test_trackio_goes_on_under_its_name(tmp_path, monkeypatch):
    trackio = Calls()
    monkeypatch.setitem(sys.modules, "trackio", trackio)
    for first_step, resume in ((0, "never"), (2, "allow")):
        trackio.made.clear()
        tracker = opened(tmp_path, [], ["trackio"], first_step=first_step)
        tracker.step(3, {"train/loss": 1.0, "bad": math.nan}, [])
        tracker.end(True)
        ((_, options),) = trackio.of("init")
        assert (options["project"], options["name"], options["resume"]) == ("dapo", "r", resume)
        assert trackio.of("log") == [(({"train/loss": 1.0},), {"step": 3})]
        assert len(trackio.of("finish")) == 1


def test_a_tracker_of_ones_own_by_name(tmp_path, monkeypatch):
    (tmp_path / "my_tracker.py").write_text(
        "import dapo\nseen = []\n"
        "class Mine(dapo.Callback):\n    def step(self, event):\n        seen.append(event.step)\n"
    )
    monkeypatch.chdir(tmp_path)
    opened(tmp_path, [], ["my_tracker:Mine"]).step(5, {}, [])
    assert sys.modules.pop("my_tracker").seen == [5]
    with pytest.raises(RecipeError, match="Expected one of tensorboard, wandb, mlflow, trackio"):
        made("nowhere:Mine")
    with pytest.raises(RecipeError, match=r"'math:pi' is no dapo\.Callback"):
        made("math:pi")
