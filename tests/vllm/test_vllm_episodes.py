"""Agents and rows by turn over vLLM, in the process and as a server: what trains is what vLLM drew."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import test_run_agent as agent
import test_run_rows_by_turn as by_turn
import yaml
from server_process import Server
from small_run import assert_every_token_has_a_fate, assert_none_lost_or_doubled, dapo

from dapo.engines.vllm import VllmEngine
from dapo.engines.vllm_server import ServerEngine
from dapo.observe.metrics import read_metrics
from dapo.observe.rollouts import read_rollouts
from dapo.types.batch import MODEL, Key

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1200)]

STEPS = 3


class Drawn:
    """Tokens that an engine returned, by response, in their order."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.tokens: dict[Key, list[int]] = defaultdict(list)
        for engine in (VllmEngine, ServerEngine):
            for name in ("poll", "abort"):
                patch.setattr(engine, name, self._noting(getattr(engine, name)))

    def _noting(self, own):
        def noting(*args, **options):
            events = own(*args, **options)
            for event in events:
                self.tokens[event.key] += event.token_ids.tolist()
            return events

        return noting


@pytest.fixture(scope="module", params=["agent", "turns"])
def started(request, tmp_path_factory) -> tuple[str, Path, list[str]]:
    """What is played, its folder, and the command that trains on it."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "agent":
        return "agent", folder, [agent.recipe(folder, heads=2), *agent.QUICK]
    name, stops = by_turn.recipe(folder, heads=2)
    return "turns", folder, [name, *by_turn.SETTINGS, *stops]


@pytest.fixture(scope="module", params=[("vllm", 0), ("vllm_server", 0), ("vllm", 2), ("vllm_server", 2)])
def played(request, started):
    """Such a run of a few steps over an engine: sampling and learning in turns, or overlapping, by the wall clock."""
    kind, folder, command = started
    engine, staleness = request.param
    over = ["rollout.engine=vllm", "rollout.vllm.kv_cache_mib=64"]
    server = None
    if engine == "vllm_server":
        server = Server(str(folder / "model"), folder)
        server.start()
        over = ["rollout.engine=vllm_server", f"rollout.server.url={server.address}", "rollout.server.patience=900"]
    name = f"{engine}_{staleness}"
    over += [f"trainer.steps={STEPS}", f"rollout.max_staleness={staleness}", f"run.name={name}"]
    try:
        with pytest.MonkeyPatch.context() as patch:
            drawn = Drawn(patch)
            dapo("train", *command, *over, cwd=folder)
    finally:
        if server is not None:
            server.kill()
    return kind, folder, folder / name, drawn.tokens


def staleness_of(run: Path) -> int:
    return int(run.name.rpartition("_")[2])


def test_rows_hold_the_tokens_that_vllm_drew(played):
    _, _, run, drawn = played
    if run.name == "vllm_2":
        pytest.skip("with overlap this engine is in a process of its own, where nobody looks on")
    compared = 0
    for row in read_rollouts(run / "rollouts").to_pylist():
        own = [row["token_ids"][turn["first"] : turn["stop"]] for turn in row["turns"] if turn["who"] == MODEL]
        assert drawn[Key("train", row["group"], row["sample"])] == [token for turn in own for token in turn]
        compared += len(own) > 1
    assert compared > 20


def test_the_learner_agrees_with_vllm_on_every_token(played):
    """The sync check, the learner's own pass over the rows, and a plain pass with the first weights."""
    kind, folder, run, _ = played
    rows = [row for row in read_metrics(run / "metrics.jsonl") if row["step"]]
    assert len(rows) == STEPS
    for row in rows:
        assert row["train/sync_gap"] < 1e-4
        assert row.get("train/gap_max_current", 0.0) < 1e-3  # absent where only carried groups trained
    recomputed = agent.assert_rows_recomputed if kind == "agent" else by_turn.assert_turns_recomputed
    assert recomputed(folder, run.name) > 100


def test_the_books_balance_and_prefill_is_what_vllm_computed(played):
    kind, _, run, _ = played
    assert_none_lost_or_doubled(run, STEPS)
    rows = [row for row in read_metrics(run / "metrics.jsonl") if row["step"]]
    sampling = yaml.safe_load((run / "recipe.resolved.yaml").read_text())["algorithm"]["dynamic_sampling"]
    oldest = staleness_of(run) or sampling["max_age"]  # in turns only what is carried over to later steps is older
    assert_every_token_has_a_fate(rows)
    for row in rows:
        assert row.get("policy/staleness_max", 0) <= oldest
        assert row["sampling/prefill_tokens"] > 0
        assert np.isfinite(row["environment/prefill_ratio"])
        if kind == "turns":  # prompts of several blocks that begin as the turn before: vLLM has most of them
            assert row["environment/prefill_ratio"] < 1
