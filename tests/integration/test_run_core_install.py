"""What trains needs none of the packages that make pages and plots."""

import re
import sys
import tomllib
from pathlib import Path

import pytest
import warm
from small_run import write_recipe

from dapo.cli.main import main
from dapo.observe.report_extra import INSTALL, PAGES, PICTURES, PLOTS

pytestmark = pytest.mark.whole
ROOT = Path(__file__).parents[2]
SETTINGS = [
    "trainer.steps=2",
    "validation.every=1",
    "algorithm.dynamic_sampling.mode=off",
    "algorithm.reward_scaling.source_max=1",
]


def every_command(folder: Path) -> None:
    """Run each, and print its code; in a process of its own, where nothing of the extra was imported yet."""
    for name in (*PLOTS, *PAGES):
        assert name not in sys.modules, f"importing the commands imports {name}"
        sys.modules[name] = None  # as if it were not installed
    run = str(folder / "run")
    for arguments in (
        ["check", str(folder / "recipe.yaml")],
        ["train", str(folder / "recipe.yaml"), *SETTINGS],
        ["data", run],
        ["evaluate", run, "--limit", "2"],
        ["export", run, str(folder / "exported")],
        ["report", run],
        ["view", run, "--port", "0"],
    ):
        print("##", arguments[0], main(arguments), flush=True)


def names(requirements):
    return {re.match(r"[\w.-]+", one)[0] for one in requirements}


def test_the_extra_holds_what_pages_and_plots_need_and_the_core_none_of_it():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    assert names(optional["report"]) == {*PLOTS, *PICTURES, *PAGES}
    assert not names(optional["report"]) & names(project["dependencies"])
    assert any(re.match(r"dapo-rl\[.*\breport\b", one) for one in optional["dev"])  # what `make setup` installs


def test_every_command_but_view_does_without_the_extra(tmp_path):
    recipe = write_recipe(tmp_path)
    # judged in the driver: no process of a verifier has to start
    recipe.write_text(
        re.sub(r"^rewards:\n(  - .*\n)+", "rewards: [{name: accuracy, kind: task}]\n", recipe.read_text(), flags=re.M)
    )
    assert warm.run(every_command, tmp_path, output=tmp_path / "said") == 0
    said = (tmp_path / "said").read_text()
    codes = dict(re.findall(r"^## (\w+) (\d+)$", said, re.M))
    assert codes == {
        "check": "0", "train": "0", "data": "0", "evaluate": "0", "export": "0", "report": "0", "view": "2"
    }, said  # fmt: skip
    assert not (tmp_path / "run" / "curve.png").exists()
    assert "curve.png" not in said
    assert re.search(r"0: \d+\.\d  1: \d+\.\d  2: \d+\.\d", said)  # the curve in words
    assert f"matplotlib and plotext not installed here; {INSTALL}" in said
    assert re.findall(r"^error: .*", said, re.M) == [
        f"error: `dapo view` needs starlette and uvicorn, not installed here: {INSTALL}",
    ]
