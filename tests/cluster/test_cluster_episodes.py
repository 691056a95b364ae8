"""Episodes over a pool of engines that keep slots: an engine killed while slots wait, agents, learning meanwhile."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest
import test_run_agent
import test_run_environment
from inline_transport import InlineTransport
from pool_runs import computed
from small_run import assert_every_token_has_a_fate, assert_none_lost_or_doubled, dapo
from test_run_agent import assert_rows_recomputed
from test_run_environment import weights

from dapo.engines.pool import EnginePool
from dapo.observe.metrics import read_metrics
from dapo.run import engines

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

POOL = ("rollout.engines=2", "rollout.turn_steps=4", "rollout.slots=10", "trainer.steps=3", "checkpoint.every=1")
OVERLAP = ("rollout.max_staleness=1", "rollout.overlap_turns=2")
KINDS = {"game": test_run_environment, "agent": test_run_agent}
OWN = {"environment/replayed", "environment/prefill_ratio"}  # what a lost engine or a resume does again


def train(folder: Path, kind: str, *over: str) -> list[dict[str, float]]:
    recipe = Path(KINDS[kind].recipe(folder)).name
    dapo("train", recipe, *KINDS[kind].QUICK, *POOL, *over, cwd=folder)
    return numbers(folder)


def numbers(folder: Path) -> list[dict[str, float]]:
    rows = computed(read_metrics(folder / "run" / "metrics.jsonl"))
    return [{key: value for key, value in row.items() if key not in OWN} for row in rows]


def different(ours, theirs) -> list[tuple]:
    """Return (row, metric, ours, theirs) where two runs differ."""
    assert len(ours) == len(theirs)
    pairs = enumerate(zip(ours, theirs, strict=True))
    return [(n, key, a.get(key), b.get(key)) for n, (a, b) in pairs for key in a | b if a.get(key) != b.get(key)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Runs whose engines live in the driver's process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engines, "transport_of", lambda run, places: InlineTransport())
        folders = {kind: tmp_path_factory.mktemp(kind) for kind in KINDS}
        for kind, folder in folders.items():
            train(folder, kind)
    return folders


@pytest.mark.parametrize("kind", KINDS)
def test_the_books_balance_and_a_plain_pass_gives_the_log_probabilities(whole, kind):
    run = whole[kind] / "run"
    assert_none_lost_or_doubled(run, 3)
    assert_every_token_has_a_fate([row for row in read_metrics(run / "metrics.jsonl") if row["step"]])
    assert assert_rows_recomputed(whole[kind]) > 100


@pytest.mark.parametrize("kind", KINDS)
def test_an_engine_killed_while_slots_wait_changes_nothing_in_lockstep(whole, kind, tmp_path, monkeypatch):
    shots, rounds, depart = [], [], EnginePool._depart

    def shooting(pool):
        begins = not pool._processes.flying and not pool._round
        rounds.extend([True] * begins)
        member = pool._processes.members[len(shots) % 2]
        if begins and member.work.kept and len(rounds) > (10, 40, 1 << 30)[len(shots)]:
            shots.append(member.facts.process)
            os.kill(shots[-1], signal.SIGKILL)
        depart(pool)

    monkeypatch.setattr(EnginePool, "_depart", shooting)
    rows = train(tmp_path, kind)
    assert len(shots) == 2
    assert different(rows, numbers(whole[kind])) == []
    ours, theirs = weights(tmp_path / "run"), weights(whole[kind] / "run")
    assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize("kind", KINDS)
def test_free_engines_of_which_one_is_killed_lose_no_episode(kind, tmp_path, monkeypatch):
    shots, depart = [], EnginePool._depart

    def shooting(pool):
        member = pool._processes.members[1]
        if not shots and member.work.kept:
            shots.append(member.facts.process)
            os.kill(shots[-1], signal.SIGKILL)
        depart(pool)

    monkeypatch.setattr(EnginePool, "_depart", shooting)
    train(tmp_path, kind, "rollout.lockstep=false")
    run = tmp_path / "run"
    assert len(shots) == 1
    assert_none_lost_or_doubled(run, 3)
    assert_every_token_has_a_fate([row for row in read_metrics(run / "metrics.jsonl") if row["step"]])
    assert assert_rows_recomputed(tmp_path) > 100


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_learns_meanwhile_keeps_its_books_over_a_resume(kind, tmp_path, monkeypatch):
    """Groups that end while the last step is saved have their rows in the next one."""
    monkeypatch.setattr(engines, "transport_of", lambda run, places: InlineTransport())
    train(tmp_path, kind, *OVERLAP, "trainer.steps=2")
    dapo("train", "--resume", "run", "trainer.steps=4", cwd=tmp_path)
    rows = [row for row in read_metrics(tmp_path / "run/metrics.jsonl") if row["step"]]
    assert any(row["groups/unfinished"] for row in rows)
    assert all(row["environment/errors"] == 0 for row in rows)
    assert_none_lost_or_doubled(tmp_path / "run", 4)
    assert_every_token_has_a_fate(rows)
    assert assert_rows_recomputed(tmp_path) > 100
