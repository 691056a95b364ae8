"""The pages about settings are current."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from configuration_page import reference
from each import each

from dapo.config.check_data import source_name
from dapo.config.faults import unknown_key
from dapo.config.peer_names import PEER_KEYS, peer_entry
from dapo.config.schema import DataSource
from dapo.config.settings import settings

DOCS = Path(__file__).parents[3] / "docs"


def test_the_reference_is_current() -> None:
    assert (DOCS / "configuration.md").read_text() == reference(), (
        "run: python tests/helpers/configuration_page.py > docs/configuration.md"
    )


def test_the_reference_holds_every_setting() -> None:
    page = reference()
    for s in settings().values():
        assert f"`{s.name}`" in page or f"## `{s.path}" in page


def test_every_place_named_on_the_page_of_peers_exists() -> None:
    page = (DOCS / "peers.md").read_text()
    places = set(re.findall(r"`((?:run|model|data|rewards|rollout|algorithm|learner|logging)\.[\w.]+)", page))
    assert len(places) > 30
    assert places - settings().keys() == set()


# Every key on the documentation pages of the four peers (NeMo RL's two, SkyRL, AReaL, ms-swift).
SEED_KEYS = [
    "use_dynamic_sampling",
    "batch_multiplier",
    "num_prompts_per_step",
    "num_generations_per_prompt",
    "dynamic_sampling_max_gen_batches",
    "dynamic_sampling_num_gen_batches",
    "dynamic_sampling_num_discarded_valid_samples",
    "filtered_reward",
    "reward_scaling",
    "source_min",
    "source_max",
    "target_min",
    "target_max",
    "reward_shaping",
    "overlong_buffer_length",
    "overlong_buffer_penalty",
    "max_response_length",
    "ratio_clip_min",
    "ratio_clip_max",
    "token_level_loss",
    "model_name",
    "checkpoint_dir",
    "wandb_enabled",
    "gpus_per_node",
    "num_nodes",
    "eps_clip_low",
    "eps_clip_high",
    "dynamic_sampling.type",
    "max_sample_batches",
    "loss_reduction",
    "apply_overlong_filtering",
    "overlong_buffer.len",
    "overlong_buffer.penalty_factor",
    "overlong_reward_penalty",
    "overlong_tokens",
    "overlong_penalty_factor",
    "eps_clip",
    "eps_clip_higher",
    "dynamic_sampling",
    "epsilon",
    "epsilon_high",
    "dynamic_sample",
    "max_resample_times",
    "loss_type",
    "overlong_filter",
    "soft_overlong",
    "soft_max_length",
    "soft_cache_length",
    "reward_funcs",
    "max_completion_length",
]


@each("key", SEED_KEYS)
def test_every_key_of_the_peers_pages_has_its_row(key: str) -> None:
    assert re.search(rf"[`.\s]{re.escape(key)}[`.:\s]", (DOCS / "peers.md").read_text()), key


def test_every_setting_of_the_peers_pages_gets_a_hint() -> None:
    metrics = {"dynamic_sampling_num_gen_batches", "dynamic_sampling_num_discarded_valid_samples", "filtered_reward"}
    known = {k.key.rpartition(".")[2] for k in PEER_KEYS} | {k.key.partition(".")[0] for k in PEER_KEYS}
    assert {k.rpartition(".")[2] for k in SEED_KEYS} - known == metrics


def test_the_page_of_peers_says_what_the_table_says() -> None:
    """Line by line: a key on the left has one of its places in the table on the right."""
    rows = [
        row.strip("| ").split(" | ") for row in (DOCS / "peers.md").read_text().splitlines() if row.startswith("| ")
    ]
    wrong, held = [], 0
    for there, here in (row for row in rows if len(row) == 2):
        for key in re.findall(r"`([\w.]+)[^`]*`", there):
            entry = peer_entry(key)
            if entry is None or not entry.ours or here.startswith("none"):
                continue
            if "presets" in here:  # a word of the key's values, not the key
                continue
            named = [path for path in entry.ours if f"`{path}" in here or f"`.{path.rpartition('.')[2]}" in here]
            named += [path for path in entry.ours if f"`{path.rpartition('.')[2]}:" in here or "preset `" in here]
            held += bool(named)
            if not named:
                wrong.append((key, entry.ours, here))
    assert wrong == []
    assert held > 100


@pytest.mark.parametrize(
    ("key", "part"),
    [
        ("actor_rollout_ref.actor.fsdp_config.param_offload", "memory and speed only"),
        ("critic.ppo_epochs_of_it", "no critic here"),
        ("cluster.fileroot", "spread over devices"),
    ],
)
def test_keys_without_a_counterpart_are_told_why(key: str, part: str) -> None:
    assert part in unknown_key(key)


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ({"path": "a/gsm8k/train.jsonl"}, "train"),
        ({"path": "a/mine.parquet"}, "mine"),
        ({"path": "hub:owner/set"}, "set"),
        ({"task": "reasoning_gym/chain_sum"}, "chain_sum"),
        ({"task": "signed_sum", "name": "x"}, "x"),
    ],
)
def test_names_of_sources(source: dict[str, str], name: str) -> None:
    assert source_name(DataSource.model_validate(source)) == name
