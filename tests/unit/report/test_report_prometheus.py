"""/metrics: read back by a strict parser of the text format, so that a line it does not allow fails."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from made_folders import HOSTILE
from serving import Served, made, serving

from dapo.metrics.glossary import GLOSSARY
from dapo.report.prometheus import exposition, latest_of, name_of

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_LABEL = r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"'
_VALUE = r"[-+]?(?:[0-9.]+(?:e[-+]?[0-9]+)?|Inf)|NaN"
_UNESCAPED = {r"\\": "\\", r"\"": '"', r"\n": "\n"}


def parse(text: str) -> dict[str, tuple[str, str, dict[frozenset[tuple[str, str]], float]]]:
    """Name -> help, type, samples by labels. Anything that the format forbids is an AssertionError."""
    assert text.endswith("\n") or not text
    families: dict[str, Any] = {}
    name = ""
    lines = iter(text.split("\n")[:-1])
    for line in lines:
        if line.startswith("# HELP "):
            _, _, name, said = line.split(" ", 3)
            assert re.fullmatch(_NAME, name), name
            assert name not in families, name  # a family stands together, once
            kind = next(lines).split(" ")
            assert kind[:3] == ["#", "TYPE", name]
            assert kind[3] in ("counter", "gauge")
            families[name] = (said, kind[3], {})
            continue
        found = re.fullmatch(rf"({_NAME})\{{({_LABEL}(?:,{_LABEL})*)\}} ({_VALUE})", line)
        assert found, line
        assert found[1] == name, line
        labels = {key: re.sub(r'\\[\\"n]', lambda m: _UNESCAPED[m[0]], of) for key, of in re.findall(_LABEL, found[2])}
        series = frozenset(labels.items())
        assert series not in families[name][2], line
        families[name][2][series] = float(found[found.lastindex or 0])
    return families


def line(name: str, **more: Any) -> Any:
    return {
        "name": name, "state": "running", "title": "", "step": 3, "steps": 10, "updated": 1.8e9, "started": 1.8e9,
        "accuracy": [], "accuracy_steps": [], "reward": [], "reward_steps": [], "preset": "dapo", "model": "a/b",
        "advice": 3, "bad": 1, **more,
    }  # fmt: skip


def test_every_run_is_served_with_its_newest_numbers(server: Served) -> None:
    reply = server.ask("/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = parse(reply.body.decode())
    runs = {"good", "sweep/seed 2 #%", "unfilled", "crashed"}
    assert {dict(labels)["run"] for labels in families["dapo_run_info"][2]} == runs
    said, kind, entropy = families["dapo_train_entropy"]
    assert said == f"{GLOSSARY['train/entropy'].meaning} (nats)"
    assert kind == "gauge"
    assert entropy[frozenset({("run", "good")})] == 0.5  # made_folders: 0.8 - 0.3 at the last step
    assert families["dapo_counters_generated_tokens"][1] == "counter"
    held_out = families["dapo_validation_set_accuracy"][2]
    assert held_out[frozenset({("run", "good"), ("set", "held_out")})] == pytest.approx(0.8)
    assert families["dapo_run_running"][2][frozenset({("run", "good")})] == 0.0


def test_names_of_users_are_escaped_and_cannot_add_a_line() -> None:
    name = f'a"}} 1\nx{{b="\\{HOSTILE}'
    numbers = {f"custom/{name}".replace("/s", "s"): 2.0, "not/known": float("inf"), 'validation/"\\n/accuracy': 0.5}
    families = parse(exposition([(line(name, model=name), numbers, []), (line("b"), {}, [])]))
    info = [dict(labels) for labels in families["dapo_run_info"][2]]
    assert [one["run"] for one in info] == [name, "b"]
    assert info[0]["model"] == name
    assert families["dapo_other"][2][frozenset({("run", name), ("key", "not/known")})] == float("inf")
    assert families["dapo_validation_set_accuracy"][2][frozenset({("run", name), ("set", '"\\n')})] == 0.5
    severities = {dict(labels)["severity"]: count for labels, count in families["dapo_run_warnings"][2].items()}
    assert severities == {"bad": 1, "warn": 2}


def test_each_process_of_a_run_has_its_numbers() -> None:
    engine: Any = {
        "name": "engine-0", "role": "engine", "machine": 'no"de', "process": 7, "alive": False, "restarts": 2,
        "last_turn": None, "turn_seconds": None, "memory_mib": 1.5,
    }  # fmt: skip
    families = parse(exposition([(line("a"), {}, [engine]), (line("b"), {}, [])]))
    labels = frozenset({("run", "a"), ("process", "engine-0"), ("role", "engine"), ("machine", 'no"de')})
    found = {name: family[2] for name, family in families.items() if name.startswith("dapo_process_")}
    assert found == {
        "dapo_process_alive": {labels: 0.0},
        "dapo_process_restarts": {labels: 2.0},
        "dapo_process_resident_memory_bytes": {labels: 1.5 * 2**20},
    }


def test_no_two_metrics_of_the_glossary_share_a_name() -> None:
    names = [name_of(key) for key in GLOSSARY]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(_NAME, name) for name in names)


def test_a_rare_number_stays_until_it_is_old() -> None:
    rows: list[Any] = [{"step": n, "a": n, "rare": 7.0 if n == 5 else None} for n in range(1, 900)]
    assert latest_of(rows) == {"a": 899.0, "rare": 7.0}
    assert latest_of([*rows, *({"step": n, "a": n} for n in range(900, 2000))]) == {"a": 1999.0}


def test_other_sites_are_refused(tmp_path: Path) -> None:
    made(tmp_path / "one", steps=1, parts="status")
    with serving(tmp_path) as served:
        assert served.ask("/metrics", Host="evil.example").status == 400
        assert served.ask("/metrics").headers["cross-origin-resource-policy"] == "same-origin"
        assert served.ask("/metrics").status == 200
