"""NeMo RL's numbers of dynamic sampling come out of ours by the formulas of the glossary."""

from __future__ import annotations

import pytest
from small_run import dapo, write_recipe

from dapo.config.peer_names import PEER_METRICS, peer_metric
from dapo.metrics.peers import nemo_rl_metrics
from dapo.observe.metrics import read_metrics
from dapo.observe.rollouts import read_rollouts

P = G = 4
ROUND = 5  # batch_multiplier


@pytest.fixture(scope="module")
def steps(tmp_path_factory):
    """Each step's metrics, with the rows of its rollouts."""
    folder = tmp_path_factory.mktemp("rounds")
    sampling = f"oversample: {ROUND}, surplus: discard, unfinished: drain, cap: {{groups: 60}}"
    recipe = write_recipe(folder)
    recipe.write_text(recipe.read_text().replace("algorithm: {", f"algorithm: {{dynamic_sampling: {{{sampling}}}, ", 1))
    dapo("train", recipe, "trainer.steps=2", "validation.every=0", "checkpoint.every=0")
    rows = [row for row in read_metrics(folder / "run" / "metrics.jsonl") if row["step"] > 0]
    return [(row, read_rollouts(folder / f"run/rollouts/step_{row['step']:06d}.parquet").to_pylist()) for row in rows]


def test_discarded_valid_samples(steps):
    discarded = []
    for row, responses in steps:
        said = G * (row["groups/discarded"] - (row["groups/finished"] - row["groups/kept"] - row["groups/filled"]))
        counted = sum(r["verdict"] == "kept" and r["disposition"] == "discarded" for r in responses)
        assert said == counted
        discarded.append(counted)
    assert sum(discarded) > 0, discarded


def test_generation_rounds(steps):
    """A first round is of 5 x P groups, a later one of 5 x what is missing then."""
    for row, responses in steps:
        verdicts = list(dict(sorted((r["group"], r["verdict"]) for r in responses)).values())
        rounds = kept = sent = 0
        while kept < P:
            size = ROUND * (P - kept)
            kept += verdicts[sent : sent + size].count("kept")
            sent += size
            rounds += 1
        assert 1 + row["sampling/refills"] == rounds
        assert row["groups/dispatched"] == sent


def test_filtered_reward(steps):
    for row, responses in steps:
        trained = [r["shaped_reward"] for r in responses if r["disposition"] == "trained"]
        assert len(trained) == P * G
        assert row["reward/shaped_mean"] == pytest.approx(sum(trained) / len(trained))


def test_the_option_of_the_logger_makes_the_three_by_these_formulas(steps):
    for row, responses in steps:
        made = nemo_rl_metrics(row, P, G, ROUND)
        counted = sum(r["verdict"] == "kept" and r["disposition"] == "discarded" for r in responses)
        assert made == {
            "train/filtered_reward": row["reward/shaped_mean"],
            "train/dynamic_sampling_num_gen_batches": 1 + row["sampling/refills"],
            "train/dynamic_sampling_num_discarded_valid_samples": counted,
        }
        without = nemo_rl_metrics(row, P, G, None)["train/dynamic_sampling_num_gen_batches"]
        assert without == -(-row["groups/dispatched"] // P)


def test_each_name_is_found_with_and_without_its_area():
    assert len({entry.key for entry in PEER_METRICS}) == len(PEER_METRICS)
    assert peer_metric("train/filtered_reward") is peer_metric("filtered_reward") is not None
    assert peer_metric("policy/staleness_max") is None
