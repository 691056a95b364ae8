"""Environments as actors of a Ray cluster: the digits of workers of this machine, also with a host killed."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest
import test_run_agent
import test_run_rows_by_turn
from pool_runs import computed
from ray_processes import NEEDS_RAY
from small_run import assert_every_token_has_a_fate, assert_none_lost_or_doubled, dapo
from test_run_environment import QUICK, assert_recomputed, playing, recipe

from dapo.environments.cluster import HostedPlayers
from dapo.observe.metrics import read_metrics

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900), NEEDS_RAY]

RAY = ("launch.backend=ray", "cluster.cpus_per_host=0.25", "environment.workers=2")


def train(folder: Path, *over: str, more: str = "") -> list[dict[str, float]]:
    """Return the rows of a run whose engine is a pool, on Ray and without it."""
    pool = ("rollout.engines=2", "rollout.turn_steps=4", "trainer.steps=3")
    dapo("train", recipe(folder, more).name, *QUICK, *pool, *over, cwd=folder)
    return computed(read_metrics(folder / "run" / "metrics.jsonl"))


def without_workers(rows: list[dict[str, float]]) -> list[dict[str, float]]:
    """Leave out what a lost host changes: turns that are played again."""
    return [{key: value for key, value in row.items() if key != "environment/replayed"} for row in rows]


def test_actors_play_what_workers_of_this_machine_play_also_with_one_killed(tmp_path_factory, monkeypatch):
    here = train(tmp_path_factory.mktemp("here"))
    ask, asked, shots = HostedPlayers.ask, [], []

    def shooting(players, question):
        asked.append(question.key)
        if len(asked) == 100:
            process = players._members[0].host.started.process
            shots.append(process)
            os.kill(process, signal.SIGKILL)
        ask(players, question)

    monkeypatch.setattr(HostedPlayers, "ask", shooting)
    folder = tmp_path_factory.mktemp("ray")
    there = train(folder, *RAY)
    assert len(shots) == 1
    assert without_workers(there) == without_workers(here)
    assert_none_lost_or_doubled(folder / "run", 3)
    hosts = set(json.loads((folder / "run" / "machine.jsonl").read_text())["hosts"])
    assert hosts == {"engine-0", "engine-1", "environment-0", "environment-1"}
    log = (folder / "run" / "log.txt").read_text()
    assert len(re.findall(rf"environment-0 is started again: .*process {shots[0]}\) was ended by SIGKILL", log)) == 1


def talk(folder: Path) -> tuple[str, ...]:
    name, stops = test_run_rows_by_turn.recipe(folder)
    return name, *test_run_rows_by_turn.SETTINGS, *stops


def agent(folder: Path) -> tuple[str, ...]:
    return test_run_agent.recipe(folder), *test_run_agent.QUICK


@pytest.mark.parametrize("made", [talk, agent])
def test_rows_by_turn_and_agents_have_the_digits_of_this_machine(made, tmp_path_factory):
    """A response is then several rows. The agent repeats itself, so its run does."""
    found = []
    for how in ((), RAY):
        folder = tmp_path_factory.mktemp("run")
        pool = ("rollout.engines=2", "rollout.turn_steps=4", "trainer.steps=3")
        dapo("train", *made(folder), *pool, *how, cwd=folder)
        assert_none_lost_or_doubled(folder / "run", 3)
        found.append(computed(read_metrics(folder / "run" / "metrics.jsonl")))
    here, there = found
    assert there == here
    assert sum(row.get("environment/reply_tokens", 0) for row in here) > 0


@pytest.mark.parametrize("how", [("learner.ranks=2",), ("rollout.max_staleness=1", "rollout.overlap_turns=2")])
def test_the_speed_of_a_tool_changes_no_bit_over_ranks_and_beside_learning(tmp_path_factory, how):
    fast, slow = (
        train(tmp_path_factory.mktemp("run"), *how, more=f"args: {{seconds: {seconds}}}") for seconds in (0.0, 0.01)
    )
    assert fast == slow
    assert sum(row.get("environment/reply_tokens", 0) for row in fast) > 0
    assert_every_token_has_a_fate(fast[1:])


def test_a_plain_forward_pass_gives_the_log_probabilities_of_a_pool(tmp_path):
    """Of all model tokens, with the tokens of replies between them."""
    with playing(tmp_path, "rollout.engines=2", "rollout.turn_steps=4") as (_, learner, groups):
        assert_recomputed(learner, groups)
