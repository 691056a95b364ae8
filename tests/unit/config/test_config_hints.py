"""Which names an unknown key is answered with: a plausible one, or none."""

from __future__ import annotations

import pytest
from each import each

from dapo.config.faults import nearest, unknown_key
from dapo.config.load import recipe_from_dict
from dapo.config.peer_names import PEER_KEYS
from dapo.config.settings import settings
from dapo.errors import RecipeError


@each(
    ("given", "meant"),
    [
        ("learner.learningrate", ["learner.learning_rate"]),
        ("rollout.temprature", ["rollout.temperature"]),
        ("algorithm.clip.hi", ["algorithm.clip.high"]),
        ("trainer.step", ["trainer.steps"]),
        ("algorithm.dynamic_sampling.oversampling", ["algorithm.dynamic_sampling.oversample"]),
        ("run.nam", ["run.name"]),
        ("weight_decay", ["learner.weight_decay"]),
        ("optimizer.weight_decay", ["learner.weight_decay"]),
        ("dataloader.shuffle", ["data.shuffle"]),
        ("top_k", ["rollout.top_k"]),
        ("temperature", ["rollout.temperature", "validation.temperature"]),
        ("algoritm.clip.low", ["algorithm.clip.low", "algorithm.advantage_clip.low"]),
        ("rewards.0.wieght", ["rewards.N.weight"]),
    ],
)
def test_slips_are_told_the_right_name(given: str, meant: list[str]) -> None:
    assert [path.replace(".0.", ".N.") for path in nearest(given)] == meant


@each(
    "given",
    [
        *("foo.type", "foo.bar", "optimizer.kind", "model.type", "model.name", "engine.name", "engine.path", "a.b.c"),
        *("cache.size", "train.mode", "logger.dir", "dataset.truncated", "worker.every", "x.kind", "n", "model.tipe"),
        *("max_prompt_len", "logging_dir", "ref.enabled", "data.truncations"),
    ],
)
def test_what_resembles_nothing_gets_no_name(given: str) -> None:
    assert nearest(given) == []


def test_every_setting_with_a_letter_too_many_is_found_again() -> None:
    """A property over the whole schema: the slip of one doubled letter in any longer name."""
    for setting in settings().values():
        name = setting.name
        if len(name) >= 4:
            slip = setting.path[: -len(name)] + name[:2] + name[1:]
            assert setting.path in nearest(slip), (slip, nearest(slip))


@each(
    ("key", "ours"),
    [
        ("actor_rollout_ref.rollout.n", "rollout.group_size"),
        ("trainer.total_epochs", "data.epochs"),
        ("trainer.logger", "logging.trackers"),
        ("data.train_files", "data.train"),
        ("num_train_epochs", "data.epochs"),
        ("report_to", "logging.trackers"),
        ("bf16", "model.dtype"),
        ("logging_steps", "metrics.jsonl"),
        ("lr_scheduler_type", "learner.schedule"),
        ("grpo.async_grpo.enabled", "rollout.max_staleness"),
        ("checkpointing.enabled", "checkpoint.every"),
        ("train_type", "model.lora.rank"),
        ("data.max_response_length", "called `rollout.max_response_tokens`"),
        ("trainer.save_freq", "checkpoint.every"),
        ("max_head_offpolicyness", "rollout.max_staleness"),
    ],
)
def test_ordinary_keys_of_peers(key: str, ours: str) -> None:
    assert ours in unknown_key(key)


def test_every_name_that_a_peers_key_gets_is_a_setting() -> None:
    missing = [(entry.key, path) for entry in PEER_KEYS for path in entry.ours if path not in settings()]
    assert missing == []


def test_a_dotted_key_of_yaml_is_shown_nested() -> None:
    with pytest.raises(RecipeError, match=r"write `algorithm: \{clip: \{high: \.\.\.\}\}`"):
        recipe_from_dict({"preset": "quickstart", "algorithm.clip.high": 0.3})


def test_suggestions_stop_after_ten_unknown_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr("dapo.config.faults.unknown_key", lambda key, kind: asked.append(key) or "no such key")
    given = {"rollout": {f"nothing_{n}": n for n in range(200)}}
    with pytest.raises(RecipeError) as caught:
        recipe_from_dict(
            {"model": {"path": "builtin/signed-sum"}, "data": {"train": [{"task": "signed_sum"}]}, **given}
        )
    assert len(asked) == 10
    assert str(caught.value).count("no such key") >= 200 or "more" in str(caught.value)
