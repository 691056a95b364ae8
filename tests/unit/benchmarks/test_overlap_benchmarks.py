"""The benchmarks of generation beside learning: their arithmetic by hand, and the simulated modes keep their word."""

from __future__ import annotations

from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


@pytest.fixture
def simulation(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import overlap_simulation

    monkeypatch.setattr(overlap_simulation, "PROMPTS", {8: 4})
    monkeypatch.setattr(overlap_simulation, "STEPS", {8: (2, 5)})
    monkeypatch.setattr(overlap_simulation, "SLOTS", 8)
    overlap_simulation.turns.cache_clear()
    yield overlap_simulation
    overlap_simulation.turns.cache_clear()


def test_learning_takes_its_share_of_a_step_of_turns(simulation):
    case = simulation.Case("turns", 8, share=0.25, scaling=0.5)
    generating = simulation.turns_seconds(case)
    assert simulation.learn_seconds(case, 8) == pytest.approx(generating / 3)  # a quarter of the whole
    assert simulation.learn_seconds(case, 2) == pytest.approx(2 * generating / 3)  # a quarter of the devices: 4^0.5
    found = simulation.simulate(case)
    assert found["seconds_per_step"] == pytest.approx(4 * generating / 3 + 13.0)  # 10 to switch, 3 to publish
    assert found["learner_use"] == pytest.approx((generating / 3) / found["seconds_per_step"])


@pytest.mark.parametrize(("mode", "limit"), [("S=1", 1), ("S=2", 2), ("S=4", 4), ("drop", 2)])
def test_simulated_modes_train_nothing_older_and_discard_nothing_but_drop(simulation, mode, limit):
    found = simulation.simulate(simulation.Case(mode, 8, share=0.1, scaling=0.7))
    assert 1 <= found["age_max"] <= limit
    assert (found["discarded"] > 0.02) == (mode == "drop")
    assert 0 < found["learner_use"] <= 1.0 + 1e-9
    assert 0 < found["engine_slot_use"] <= 1.0 + 1e-9


def test_what_is_kept_of_a_run(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import overlap

    rows = [{"step": 0, "time/step": 9.0, "time/evaluate": 8.0, "validation/accuracy": 0.1}]
    for step in range(1, 6):
        rows.append(
            {
                "step": step,
                "time/step": 4.0,
                "time/engine_idle": 1.0,
                "time/learner_idle": 2.0,
                "sampling/generated_tokens": 100,
                "cost/discarded_tokens": 5,
                "cost/expired_tokens": 5,
                "counters/generated_tokens": 100 * step,
                "policy/staleness_mean": 1.5,
                "policy/staleness_max": 2,
            }
        )
    rows[-1] |= {"time/step": 10.0, "time/evaluate": 6.0, "validation/accuracy": 0.5}
    curve = overlap.curve_of(rows)  # the first three steps are warm-up
    assert curve["seconds"] == [1.0, 21.0]
    assert curve["tokens"] == [0.0, 500]
    assert (curve["step_seconds"], curve["discarded"], curve["age_mean"], curve["age_max"]) == (4.0, 0.1, 1.5, 2)
    assert curve["engine_idle"] == pytest.approx(2.0 / 14.0)
    assert curve["learner_idle"] == pytest.approx(4.0 / 14.0)
    by_seed = {1: dict.fromkeys(overlap.MODES, curve), 2: dict.fromkeys(overlap.MODES, curve)}
    report = overlap.summarise(by_seed)
    assert report["modes"]["S = 2"]["seconds_over_turns"] == {"mean": 1.0, "low": 1.0, "high": 1.0}
    assert report["modes"]["drop"]["accuracy_at_tokens"][1]["mean"] == pytest.approx(0.3)  # half way
    machine = {"command": "c", "cpu": "x", "commit": "y", "date": "z"}
    sizes = {"steps": 5, "warm_up": 3}
    text = overlap.markdown({"machine": machine, "options": sizes, "seeds": [1, 2], **report})
    assert "| drop | 1.00 [1.00, 1.00] | 14% [14, 14] |" in text


def test_a_run_is_made_once_and_again_when_its_settings_are_others(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import cached_runs

    made = []

    def train(overrides, folder):
        assert folder.is_dir()
        made.append(overrides)
        return [{"step": len(made)}]

    monkeypatch.setattr(cached_runs, "train", train)

    def ask(*overrides, may_run=True):
        return cached_runs.cached_run([*overrides], tmp_path / "work", may_run, lambda rows: {"last": rows[-1]["step"]})

    assert ask("a=1", may_run=False) is None
    assert ask("a=1") == ask("a=1") == ask("a=1", may_run=False) == {"last": 1}
    assert ask("a=2") == {"last": 2}
    assert made == [["a=1"], ["a=2"]]
    assert len(list((tmp_path / "work").iterdir())) == 2  # no run's folder stays


def test_a_benchmark_goes_on_with_a_run_by_the_command_that_made_it(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import base_to_trained

    from dapo.observe.status import StatusWriter

    asked = []
    monkeypatch.setattr(base_to_trained, "dapo", asked.append)
    base_to_trained.run("sft", tmp_path / "recipe.yaml", tmp_path, "run.name=x")
    assert asked == [["sft", str(tmp_path / "recipe.yaml"), "run.name=x"]]
    for state, command in [("interrupted", "sft"), ("failed", "train"), ("running", "train"), ("finished", "sft")]:
        asked.clear()
        StatusWriter(tmp_path / "status.json", steps=2).end(state)
        base_to_trained.run(command, tmp_path / "recipe.yaml", tmp_path)
        assert asked == ([] if state == "finished" else [[command, "--resume", str(tmp_path)]])
