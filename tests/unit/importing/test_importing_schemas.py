"""Every field of the other trainers' released configurations becomes a line, or is set apart with its reason.

`tests/helpers/peer_schema.py` reads the fields from the packages into tests/data/peer_schemas.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from dapo.config.peer_names import PEER_KEYS
from dapo.importing import convert, yaml_source
from dapo.importing.convert import import_text
from dapo.importing.reading import Reading
from dapo.importing.recognise import SYSTEMS
from tests.unit.importing.switches_for_tests import EARLIER, LEAST, SWITCHES, VALUES

SCHEMAS = Path(__file__).resolve().parents[2] / "data/peer_schemas"
FOUND = {"line", "apart", "said"}
NOTHING = ("not known to `dapo import`", "read, and no line came of it")


def fields_of(system: str) -> dict[str, Any]:
    return json.loads((SCHEMAS / f"{system}.json").read_text())["fields"]


def another(default: Any) -> Any:
    """Return a value that differs from a default and is of its kind."""
    if isinstance(default, bool):
        return not default
    if isinstance(default, int):
        return default + 3 if default >= 0 else 7
    if isinstance(default, float):
        return default * 0.5 + 0.01 if 0 < default <= 1 else default + 0.25
    if isinstance(default, str):
        return f"{default}_odd" if default not in ("", "?") else "odd"
    return {list: ["odd"], dict: {"odd": 1}}.get(type(default), 7)


def with_key(settings: dict, key: str, value: Any) -> dict:
    copy = json.loads(json.dumps(settings))
    *sections, last = key.split(".")
    here = copy
    for section in sections:
        if not isinstance(here.get(section), dict):
            here[section] = {}
        here = here[section]
    here[last] = value
    return copy


def outcome(system: str, settings: dict, key: str, value: Any) -> str:
    """Return one of ``FOUND`` or, where nothing is made of the key, why."""
    reading = import_text(json.dumps(with_key(settings, key, value)), "a.json", system).reading
    named = re.compile(rf"(?<![\w.]){re.escape(key)}(?![\w-]|\.\w)")
    if any(line.given and named.search(line.comment) for line in reading.lines.values()):
        return "line"
    reasons = [entry.reason for entry in reading.apart if named.match(entry.what)]
    if any(not reason.startswith(NOTHING) for reason in reasons):
        return "apart"
    return (
        "said" if any(named.search(text) for text in reading.said + reading.cautions) else " ".join(reasons) or "lost"
    )


@pytest.fixture
def quick(monkeypatch) -> None:
    """Leave out YAML, the recipe's check and its text: here it is about what each of two thousand keys becomes."""
    monkeypatch.setattr(yaml_source, "parse_yaml", lambda text, name: (json.loads(text), {}))
    monkeypatch.setattr(convert, "_without_idle_lines", lambda reading: "")
    monkeypatch.setattr(convert, "recipe_text", lambda reading, missing: "")


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.usefixtures("quick")
def test_each_field_of_a_schema_is_a_line_or_has_a_reason(system: str) -> None:
    fields, lost = fields_of(system), {}
    assert len(fields) > 200
    for key, default in fields.items():
        if any(other.startswith(f"{key}.") for other in fields):  # a section, null in one of the files
            continue
        name, value = (f"{key}.odd", 1) if default == {} else (key, VALUES.get((system, key), another(default)))
        least = outcome(system, LEAST[system], name, value)
        if least not in FOUND and not any(outcome(system, on, name, value) in FOUND for on in SWITCHES[system]):
            lost[key] = least
    assert lost == {}


@pytest.mark.usefixtures("quick")
def test_a_field_that_no_table_has_is_seen() -> None:
    assert outcome("verl", LEAST["verl"], "actor_rollout_ref.actor.brand_new", 1).startswith(NOTHING[0])


@pytest.mark.usefixtures("quick")
def test_each_owner_of_a_key_has_it(monkeypatch) -> None:
    """`dapo explain` names trainers: each has the key in its schema, in its importer, or had it in earlier releases."""
    asked = {}
    for system, title in SYSTEMS.items():
        keys = asked[title] = set(fields_of(system))
        for question in ("find", "number", "flag"):
            monkeypatch.setattr(Reading, question, listening(getattr(Reading, question), keys))
        import_text('{"nothing": 1}', "a.json", system)
        monkeypatch.undo()
    wrong = [
        (row.key, who)
        for row in PEER_KEYS
        for who in row.who
        if (row.key, who) not in EARLIER and not any(f".{row.key}." in f".{key}." for key in asked[who])
    ]
    assert wrong == []


def listening(ask, keys: set[str]):
    def asking(reading: Reading, *names: str, **more):
        keys.update(names)
        return ask(reading, *names, **more)

    return asking
