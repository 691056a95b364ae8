"""``dapo compare``: which runs it finds, its table, and its JSON as docs/cli.md has it."""

import json

import pytest
from documented_json import documented_keys

from dapo.cli.main import main


@pytest.fixture
def runs(tmp_path, make_run, monkeypatch):
    """Two settings with five seeds each; ``high`` gains seed + 1 points. Working directory: their folder."""

    def of(name, seed, rate, gain):
        accuracy = {"validation/accuracy": 0.5 + seed / 100 + gain}
        metrics = lambda step: {**accuracy, "counters/generated_tokens": 100 * step}  # noqa: E731
        return make_run(
            tmp_path / "runs" / name, seed=seed, metrics=metrics, settings={"learner": {"learning_rate": rate}}
        )

    for seed in range(1, 6):
        of(f"low-{seed}", seed, 1e-6, 0.0)
        of(f"high-{seed}", seed, 1e-5, (seed + 1) / 100)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


def said(capsys, *arguments, code=0):
    assert main(["compare", *map(str, arguments)]) == code
    found = capsys.readouterr()
    return found.out if code == 0 else found.err


def test_a_folder_and_patterns_lead_to_the_same_table(runs, capsys):
    by_pattern = said(capsys, "runs/low-*", "runs/high-*")
    assert [" ".join(line.split()) for line in by_pattern.splitlines()] == [
        "held-out accuracy (validation/accuracy) at step 12",
        "setting runs mean 95 % interval",
        "low, learner.learning_rate=1e-06 5 of 5 53.0% 51.0% to 55.0%",
        "high, learner.learning_rate=1e-05 5 of 5 57.0% 53.1% to 60.9%",
        "against low, learner.learning_rate=1e-06",
        "high, learner.learning_rate=1e-05: +4.0 points (95 % interval +2.0 to +6.0, paired by 5 seeds): better, which "
        "is shown",
    ]
    assert "against high" in said(capsys, "runs")  # in the order of their names
    assert said(capsys, *sorted(runs.glob("low-*")), "runs") == by_pattern  # each once


def test_the_json_has_the_documented_keys_and_the_tables_numbers(runs, capsys):
    found = json.loads(said(capsys, "runs/low-*", "runs/high-*", "--at", "tokens=600", "--confidence", "99", "--json"))
    assert {key: found[key] for key in ("metric", "better", "at", "place", "confidence", "fewest_seeds")} == {
        "metric": "validation/accuracy",
        "better": "higher",
        "at": "tokens",
        "place": 600,
        "confidence": 0.99,
        "fewest_seeds": 5,
    }
    documented = documented_keys("`dapo compare`, `comparison` of `dapo report`")
    assert set(found) == set(documented)
    low, high = found["families"]
    assert {*low, *low["runs"][0], *high["difference"]} == set(documented["families"])
    assert set(low) == {"name", "runs", "mean", "low", "high", "difference"}
    assert low["difference"] is None
    assert low["runs"][0] == {"run": "low-1", "folder": "runs/low-1", "seed": 1, "value": 0.51}
    # differences of 2 to 6 points: t of 4 degrees of freedom at 99 % is 4.604, error 0.7071
    assert high["difference"] == {
        "mean": 0.04,
        "low": pytest.approx(0.04 - 0.032556, abs=2e-6),
        "high": pytest.approx(0.04 + 0.032556, abs=2e-6),
        "confidence": 0.99,
        "seeds": 5,
        "how": "paired by 5 seeds",
        "verdict": "better",
    }
    assert found["left_out"] == {}
    assert "high-1 to 1,200 generated tokens" in found["notes"][0]


def test_what_it_cannot_compare_is_refused_with_the_next_move(runs, capsys):
    assert "matches no run" in said(capsys, "runs/none-*", code=2)
    assert "a comparison takes two or more" in said(capsys, "runs/low-1", code=2)
    assert "holds no run" in said(capsys, "runs/low-1", "elsewhere", code=2)
    assert "steps=40" in said(capsys, "runs", "--at", "hours", code=2)
    assert "steps=40" in said(capsys, "runs", "--at", "steps=-1", code=2)
    assert "steps=40" in said(capsys, "runs", "--at", "steps=1.5", code=2)
    assert "--by" in said(capsys, "runs", "--by", "learner.learning", code=2)
    section = said(capsys, "runs", "--by", "learner", code=2)
    assert section.split("such as ")[1].split()[0] == "learner.learning_rate"  # another name than the refused one
