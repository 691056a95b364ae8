"""Settings as keyword sections: a type checker sees a typo, and so does the program at run time."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from each import each
from typed_settings import main as sections_of_the_schema

import dapo
from dapo.errors import RecipeError

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = """
import dapo
from collections.abc import Iterator
from pathlib import Path

def score(prompt: object, completion: object) -> float:
    return 1.0

class Model:
    def parameters(self, recurse: bool = True) -> Iterator[object]:
        return iter(())

run = dapo.train(
    "quickstart",
    rewards=[score, "math", {"name": "last", "kind": "last_number", "weight": 0.5}],
    environment={"kind": score, "tools": [score]},
    model={"path": Path("folder"), "dtype": "bfloat16"},
    rollout={"engine": "embedded", "engines": "auto", "stop": ["</answer>"]},
    learner={"learning_rate": 1e-5, "betas": [0.9, 0.95], "max_grad_norm": None},
    algorithm={"loss": {"kind": "cispo", "cap": 5}, "advantage": "gdpo", "shaping": score},
    logging={"trackers": ["wandb", {"kind": "mlflow"}]},
    trainer={"steps": 3},
    run={"name": "typed"},
)
dapo.resume(run, trainer={"steps": 4}, validation={"every": 2})
dapo.check("quickstart", model="builtin/signed-sum", environment=score)
dapo.sft("quickstart", sft={"epochs": 2})
dapo.train("quickstart", model=Model(), tokenizer=object())

dapo.train("quickstart", learner={"learnin_rate": 1e-5})  # wrong
dapo.train("quickstart", learner={"learning_rate": "1e-5"})  # wrong
dapo.train("quickstart", lerner={"learning_rate": 1e-5})  # wrong
dapo.train("quickstart", environment={"max_turn": 3})  # wrong
dapo.train("quickstart", rewards=[{"kind": "exact", "wieght": 2}])  # wrong
dapo.train("quickstart", algorithm={"loss": {"kind": "cispo", "cup": 5}})  # wrong
dapo.train("quickstart", rollout={"vllm": {"sleeps": True}})  # wrong
dapo.check("quickstart", model={"dtype": "float16"})  # wrong
dapo.sft("quickstart", sft={"epoch": 2})  # wrong
dapo.resume(run, validation={"evry": 2})  # wrong
dapo.Trainer("quickstart", trainer={"step": 3})  # wrong
"""
ONLY_THE_INTERFACE = """
[mypy]
strict = true
follow_imports = skip
[mypy-dapo,dapo.api.*,dapo.algorithms.objective]
follow_imports = silent
"""


@pytest.mark.whole
def test_mypy_reports_every_wrong_setting_and_no_right_one(tmp_path, monkeypatch):
    monkeypatch.setenv("MYPYPATH", str(ROOT))
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "mypy.ini").write_text(ONLY_THE_INTERFACE)
    options = ["--config-file", str(tmp_path / "mypy.ini"), "--cache-dir", str(tmp_path / "cache")]
    # A process of its own: mypy raises the recursion limit of the one that it runs in, which other tests ask about.
    command = [sys.executable, "-m", "mypy", *options, str(tmp_path / "program.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    said = done.stdout
    assert not done.stderr
    found = {int(line) for line in re.findall(r"program\.py:(\d+): error", said)}
    wrong = {number for number, line in enumerate(PROGRAM.splitlines(), 1) if line.endswith("# wrong")}
    assert found == wrong, said


def test_the_types_are_those_of_the_schema():
    written = (ROOT / "dapo/api/sections.pyi").read_text()
    made = sections_of_the_schema()
    same = ast.dump(ast.parse(made)) == ast.dump(ast.parse(written))
    assert same, "run: python tests/helpers/typed_settings.py > dapo/api/sections.pyi, then ruff format on it"


@each(
    "settings, meant",
    [
        ({"lerner": {"learning_rate": 1e-5}}, "learner"),
        ({"learner": {"learnin_rate": 1e-5}}, "learner.learning_rate"),
        ({"rollout": {"vllm": {"sleeps": True}}}, "rollout.vllm.sleep"),
        ({"algorithm": {"loss": {"kind": "cispo", "cup": 5}}}, "algorithm.loss.cap"),
        ({"environment": {"max_turn": 3}}, "environment.max_turns"),
        ({"rewards": [{"kind": "exact", "wieght": 2}]}, "rewards.N.weight"),
    ],
)
def test_a_wrong_name_is_refused_with_the_nearest_one(settings, meant):
    with pytest.raises(RecipeError, match=rf"did you mean `?{meant}`?\?"):
        dapo.check("quickstart", **settings)
