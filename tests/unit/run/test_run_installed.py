"""What a recipe names and this machine does not have is refused before work starts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dapo.cli.main import main
from dapo.config import load_recipe
from dapo.errors import DapoError, RecipeError
from dapo.models.tiny import make_tiny_model
from dapo.run import train
from dapo.run.here import lacking

NOT_HERE = 3


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("wandb", "mlflow", "trackio"):
        monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed
    return tmp_path


@pytest.mark.parametrize(
    ("setting", "package"),
    [
        pytest.param("logging.trackers=[wandb]", "wandb", marks=pytest.mark.whole),
        pytest.param("logging.trackers=[mlflow]", "mlflow", marks=pytest.mark.whole),
        pytest.param("logging.trackers=[trackio]", "trackio", marks=pytest.mark.whole),
        ("logging.trackers.0={kind: wandb, project: mine}", "wandb"),
    ],
)
def test_a_tracker_that_is_not_installed(
    setting: str, package: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["quickstart", "trainer.steps=1", setting]
    assert main(["check", *small]) == NOT_HERE
    assert f"the tracker {package} cannot be imported here" in capsys.readouterr().out
    assert main(["train", *small]) == NOT_HERE
    said = capsys.readouterr().err
    assert f"the tracker {package} cannot be imported here" in said
    assert "pip install" in said
    assert list(folder.iterdir()) == []  # nothing was begun


def test_a_tracker_whose_own_dependency_is_missing_names_that(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "mlflow")
    (folder / "mlflow.py").write_text("import opentelemetry_that_is_not_here\n")
    (said,) = lacking(load_recipe("quickstart", ["logging.trackers=[mlflow]"]).recipe)
    assert "No module named 'opentelemetry_that_is_not_here'" in said


@pytest.mark.parametrize("name", ["os:system", "os:getcwd", "sys:exit", "json:JSONDecoder", "math:pi", "nowhere:Mine"])
def test_a_tracker_that_is_no_callback(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["quickstart", "trainer.steps=1", f"logging.trackers=[{name}]"]
    for command in ("check", "train"):
        assert main([command, *small]) == 2
        said = capsys.readouterr().err
        assert "logging.trackers" in said
        assert name in said
        assert "dapo.Callback" in said
    assert list(folder.iterdir()) == []


def test_a_tracker_that_cannot_be_made(folder: Path) -> None:
    (folder / "cannot.py").write_text(
        "import dapo\nclass Mine(dapo.Callback):\n    def __init__(self): raise ValueError('no key')\n"
    )
    with pytest.raises(RecipeError, match=r"logging\.trackers: cannot make 'cannot:Mine' \(ValueError: no key\)"):
        train(load_recipe("quickstart", ["logging.trackers=[cannot:Mine]"]))
    sys.modules.pop("cannot")


@pytest.mark.parametrize("name", ["os:rename", "json:JSONDecoder", "os:getcwd", "engine_to_check:Nothing"])
def test_an_engine_that_is_none(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "engine_to_check.py").write_text(
        "class Nothing:\n    def __init__(self, context): pass\ndef make(context): return object()\n"
    )
    for command in ("check", "train"):
        assert main([command, "quickstart", "trainer.steps=1", f"rollout.engine={name}"]) == 2
        said = capsys.readouterr().err
        assert f"rollout.engine: {name}" in said
        assert "dapo.types.protocols.Engine" in said
    assert not (folder / "runs" / "quickstart").exists()
    sys.modules.pop("engine_to_check", None)


def test_an_engine_whose_factory_makes_none(folder: Path) -> None:
    """What a function returns is seen when it is called: before the first step."""
    (folder / "engine_to_check.py").write_text("def make(context): return object()\n")
    small = ["rollout.engine=engine_to_check:make", f"model.path={make_tiny_model(folder / 'model')}"]
    with pytest.raises(DapoError, match=r"rollout\.engine: engine_to_check:make .* no submit"):
        train(load_recipe("quickstart", small))
    sys.modules.pop("engine_to_check", None)


def test_slices_cannot_be_moved_away_from_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    offload = ["learner.ranks=2", "learner.cpu_offload=true", "rollout.engine=embedded"]
    (said,) = lacking(load_recipe("quickstart", offload).recipe)
    assert "learner.cpu_offload" in said
