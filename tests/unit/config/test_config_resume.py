"""What may change on resume: free, ask, fixed."""

from __future__ import annotations

from pathlib import Path

import pytest

from dapo.config import recipe_from_dict
from dapo.config.resume import check_resume, load_for_resume
from dapo.config.settings import settings
from dapo.config.yaml_files import RESOLVED
from dapo.errors import CheckpointError, RecipeError

SMALL = {"model": {"path": "someone/model"}, "data": {"train": [{"task": "signed_sum"}]}, "run": {"name": "x"}}
OLD = recipe_from_dict(SMALL)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / RESOLVED).write_text(OLD.resolved)
    return tmp_path


FREE = {
    "run": "if_exists reward_workers reward_memory_mib",
    "model": "activation_checkpointing",
    "data": "epochs",
    "rewards.N": "timeout memory_mib url batch concurrency retries outage_limit api_key_variable",
    "sandbox": "kind url timeout memory_mib api_key_variable",
    "environment": "timeout workers memory_mib",
    "rollout": "weight_transfer",
    "rollout.vllm": "gpu_memory_utilization kv_cache_mib tensor_parallel_size enforce_eager sleep",
    "rollout.server": "url weights_dir patience api_key_variable",
    "algorithm.reference": "offload",
    "algorithm.teacher": "offload patience api_key_variable",
    "algorithm.dynamic_sampling.cap": "groups tokens then",
    "learner": "microbatch_tokens max_skipped_steps ranks replicas context_parallel reshard_after_forward cpu_offload "
    "timeout",
    "validation": "every samples greedy temperature top_p max_response_tokens limit",
    "sft": "epochs steps every export",
    "trainer": "steps max_hours sync_check_tolerance",
    "trainer.early_stop": "metric best_is patience min_change",
    "checkpoint": "every keep seconds best best_is asynchronous",
    "logging": "rollouts tokens spans console also samples_every trackers",
    "logging.trackers.N": "kind project",
    "launch": "backend",
    "cluster": "address nodes gpus_per_node colocate cpus_per_host start_timeout engine_timeout max_engine_restarts "
    "max_learner_restarts",
    "slurm": "nodes options setup container signal_seconds requeue",
}
FIXED = {
    "": "preset",
    "run": "dir name stage seed",
    "model": "path builtin_seed dtype",
    "model.lora": "rank lora_alpha target_modules use_rslora modules_to_save",
    "data": "stream prompt prompt_template chat_template chat_template_kwargs tools tools_field response_prefix "
    "system_prompt instruction max_prompt_tokens overlong_prompts shuffle train validation few_shot",
    "data.few_shot.N": "problem response",
    "data.train.N": "name split format fields task options seed size weight levels",
    "data.validation.N": "name split format fields task options seed size",
    "rewards.N": "name",
    "rollout": "group_size",
    "environment": "kind id args run tools tool_format rows",
    "algorithm.reference": "refresh_every",
    "learner": "optimizer router_replay",
    "sft": "max_tokens overlong loss_on train validation",
    "sft.train.N": "name split fields size",
    "sft.validation.N": "name split fields size",
    "checkpoint": "dir",
}
"""What a resume may change at will, and what it may never change, by section. It may change the rest when asked."""


def test_the_rules_of_all_settings() -> None:
    expected = {
        f"{section}.{name}" if section else name: rule
        for rule, sections in (("free", FREE), ("fixed", FIXED))
        for section, names in sections.items()
        for name in names.split()
    }
    found = {s.path: s.resume for s in settings().values() if not s.section or s.path in expected}
    assert expected.keys() - found.keys() == set()
    assert found == {path: expected.get(path, "ask") for path in found}


def test_no_change(run: Path) -> None:
    loaded, changes = load_for_resume(run)
    assert loaded.recipe == OLD.recipe
    assert changes == []


def test_free_settings_change_at_will(run: Path) -> None:
    overrides = [
        "trainer.steps=7",
        "checkpoint.every=2",
        "algorithm.dynamic_sampling.cap.then=fill",
        "logging.tokens=0",
    ]
    loaded, changes = load_for_resume(run, overrides)
    assert loaded.recipe.trainer.steps == 7
    assert {(c.path, c.rule) for c in changes} == {
        ("trainer.steps", "free"),
        ("checkpoint.every", "free"),
        ("algorithm.dynamic_sampling.cap.then", "free"),
        ("logging.tokens", "free"),
    }
    new = recipe_from_dict(SMALL, overrides).recipe
    assert check_resume(OLD.recipe, new) == changes  # even when nobody names them


def test_a_change_that_nothing_reads_is_a_warning_and_those_of_the_run_are_not_told_again(run: Path) -> None:
    given = recipe_from_dict(SMALL, ["algorithm.overlong_filtering=true", "algorithm.truncated_vote=true"])
    assert given.warnings
    (run / RESOLVED).write_text(given.resolved)
    assert load_for_resume(run)[0].warnings == ()
    (said,) = load_for_resume(run, ["algorithm.entropy_control.delta=0.01"])[0].warnings
    assert said.startswith("algorithm.entropy_control.delta is set, and nothing reads it")


def test_ask_settings_must_be_named(run: Path) -> None:
    overrides = ["learner.learning_rate=1e-5", "rewards.0.weight=0.5"]
    _, changes = load_for_resume(run, overrides)
    assert [c.sentence() for c in changes] == [
        "rewards.0.weight: 1.0 -> 0.5 (ask)",
        "learner.learning_rate: 1e-06 -> 1e-05 (ask)",
    ]
    new = recipe_from_dict(SMALL, overrides).recipe
    with pytest.raises(RecipeError, match=r"allowed when asked for: add learner\.learning_rate=1e-05"):
        check_resume(OLD.recipe, new, ["rewards.0.weight=0.5"])


def test_naming_a_section_asks_for_all_of_it(run: Path) -> None:
    _, changes = load_for_resume(run, ["algorithm.clip={low: 0.1, high: 0.3}"])
    assert [c.path for c in changes] == ["algorithm.clip.low", "algorithm.clip.high"]


@pytest.mark.parametrize(
    "override", ["run.seed=2", "model.dtype=bfloat16", "rollout.group_size=8", "preset=grpo", "data.train.0.seed=5"]
)
def test_fixed_settings_are_refused_even_when_named(run: Path, override: str) -> None:
    with pytest.raises(RecipeError) as error:
        load_for_resume(run, [override, "trainer.steps=7"])
    message = str(error.value)
    assert override.partition("=")[0] in message
    assert "(fixed)" in message
    assert "allowed to change: trainer.steps: 100 -> 7 (free)" in message


def test_a_further_source_is_fixed_and_a_further_reward_is_asked_for(run: Path) -> None:
    with pytest.raises(RecipeError, match=r"data\.train: .*\(fixed\)"):
        load_for_resume(run, ["data.train.1.task=reasoning_gym/chain_sum"])
    _, changes = load_for_resume(run, ["rewards.1={name: short, kind: regex, pattern: x, weight: 0}"])
    assert [(c.path, c.rule) for c in changes] == [("rewards", "ask")]


def test_a_section_that_is_null_changes_as_a_whole(run: Path) -> None:
    greso = "algorithm.dynamic_sampling.selection.greso"
    loaded, changes = load_for_resume(run, [f"{greso}.target=0.5"])
    assert [c.sentence() for c in changes] == [f'{greso}: null -> {{"target": 0.5}} (ask)']
    assert loaded.difference[f"{greso}.target"] == (None, 0.5)
    with pytest.raises(RecipeError, match=f"{greso}: null"):
        check_resume(OLD.recipe, loaded.recipe)
    (run / RESOLVED).write_text(loaded.resolved)
    assert load_for_resume(run)[1] == []
    assert [c.new for c in load_for_resume(run, [f"{greso}=null"])[1]] == [None]


def test_a_folder_without_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "runs" / "mine" / RESOLVED).touch()
    with pytest.raises(CheckpointError, match=r"not a run folder.*runs/mine"):
        load_for_resume("nothing")


# ---------------------------------------------------------------- a resume that changes what other settings follow


def going_on(tmp_path, given, *overrides):
    """The changes of a resume of a run of ``given``: path -> (before, after)."""
    (tmp_path / RESOLVED).write_text(recipe_from_dict(SMALL | given).resolved)
    loaded, changes = load_for_resume(tmp_path, overrides)
    (tmp_path / RESOLVED).write_text(loaded.resolved)  # as a run writes it that goes on
    assert load_for_resume(tmp_path)[1] == []
    return {change.path: (change.old, change.new) for change in changes}


AGE, AHEAD = "algorithm.dynamic_sampling.max_age", "algorithm.dynamic_sampling.lookahead"


def test_what_follows_from_the_staleness_follows_on_a_resume_too(tmp_path):
    found = going_on(tmp_path, {}, "rollout.max_staleness=2")
    assert found == {"rollout.max_staleness": (0, 2), AGE: (4, 2), AHEAD: (0.5, 1.5)}
    found = going_on(tmp_path, {"rollout": {"max_staleness": 2, "overlap_turns": 3}}, "rollout.max_staleness=0")
    turns = {"rollout.overlap_turns": (3, None)}
    assert found == {"rollout.max_staleness": (2, 0), AGE: (2, 4), AHEAD: (1.5, 0.5)} | turns
    found = going_on(tmp_path, {"rollout": {"max_staleness": 2, "overlap_turns": 3}}, "rollout.max_staleness=4")
    assert found == {"rollout.max_staleness": (2, 4), AGE: (2, 4), AHEAD: (1.5, 3.5)}


def test_what_was_set_or_is_named_stays_as_it_is(tmp_path):
    own = {"algorithm": {"dynamic_sampling": {"max_age": 1, "lookahead": 0.25}}}
    assert going_on(tmp_path, own, "rollout.max_staleness=2") == {"rollout.max_staleness": (0, 2)}
    found = going_on(tmp_path, {}, "rollout.max_staleness=2", f"{AGE}=1")
    assert found == {"rollout.max_staleness": (0, 2), AGE: (4, 1), AHEAD: (0.5, 1.5)}


def test_an_age_above_the_staleness_is_refused_with_a_move_that_works(tmp_path):
    own = {"algorithm": {"dynamic_sampling": {"max_age": 8}}}
    with pytest.raises(RecipeError, match=rf"{AGE}=2") as refused:
        going_on(tmp_path, own, "rollout.max_staleness=2")
    assert "take it out" not in str(refused.value)
    assert going_on(tmp_path, own, "rollout.max_staleness=2", f"{AGE}=2")[AGE] == (8, 2)


def test_turns_without_staleness_are_refused_with_a_move_that_works(tmp_path):
    with pytest.raises(RecipeError, match=r"rollout\.overlap_turns=null"):
        going_on(tmp_path, {}, "rollout.overlap_turns=3")
    assert going_on(tmp_path, {}, "rollout.overlap_turns=null") == {}
