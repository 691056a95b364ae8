"""Nothing is dropped in silence: whatever a converter looks for is a line's origin, or is listed."""

from __future__ import annotations

import json
import re

import pytest
from each import each

from dapo.importing import convert
from dapo.importing.convert import import_text
from dapo.importing.reading import Reading
from dapo.importing.recognise import SYSTEMS

ODD = {"number": 7, "flag": False, "find": "zz"}  # by the question with which a key is looked for


def imported(system: str, settings: dict) -> str:
    return import_text(json.dumps(settings), "a.json", system).text


@pytest.mark.parametrize("system", SYSTEMS)
def test_each_key_that_is_looked_for_stands_in_the_recipe(system: str, monkeypatch) -> None:
    """Alone in its file: most are read only beside a switch that is not there."""
    values: dict[str, object] = {}

    def listen(question: str) -> None:
        ask = getattr(Reading, question)

        def asking(reading: Reading, *keys: str, **more):
            for key in keys:
                values.setdefault(key, ODD[question])
            return ask(reading, *keys, **more)

        monkeypatch.setattr(Reading, question, asking)

    for question in ODD:
        listen(question)
    monkeypatch.setattr(convert, "_without_idle_lines", lambda reading: "")  # slow, and has tests of its own
    imported(system, {"nothing": 1})
    asked = dict(values)
    assert {*asked.values()} == {*ODD.values()}
    assert len(asked) > 40
    named = r"(?<![\w.]){}\b(?!\.\w)"
    lost = {
        key: value
        for key, value in asked.items()
        if not re.search(named.format(re.escape(key)), imported(system, {key: value}))
    }
    assert lost == {}


@each(
    ("system", "settings", "lines"),
    [
        ("trl", {"report_to": ["trackio", "mlflow"]}, {"logging.trackers": ["mlflow", "trackio"]}),
        ("trl", {"report_to": "none"}, {}),
        (
            "ms-swift",
            {"report_to": ["wandb", "swanlab"]},
            {"logging.trackers": [{"kind": "wandb", "project": "huggingface"}]},
        ),
        (
            "verl",
            {"trainer": {"logger": "['console','wandb','tensorboard']", "project_name": "sums"}},
            {"logging.trackers": ["tensorboard", {"kind": "wandb", "project": "sums"}]},
        ),
        ("skyrl", {"trainer": {"logger": "tensorboard"}}, {"logging.trackers": ["tensorboard"]}),
        ("skyrl", {"trainer": {"logger": "wandb"}}, {"logging.trackers": [{"kind": "wandb", "project": "skyrl"}]}),
    ],
)
def test_trackers_come_along_by_their_names(system: str, settings: dict, lines: dict) -> None:
    made = import_text(json.dumps(settings), "a.json", system)
    assert {key: line.value for key, line in made.reading.lines.items() if key.startswith("logging.")} == lines
    assert ("swanlab: logging.trackers takes" in made.text) == ("swanlab" in str(settings))
