"""Defaults of other trainers, as their own sources have them: what is not said in a file comes out as it is there.

Read from the wheels trl 1.16.0 (`trainer/grpo_config.py`), ms-swift 4.6.0 (`arguments/rlhf_args.py`, `tuner_args.py`,
`trainers/arguments.py`, `rlhf_trainers/args_mixin.py`), verl 0.9.1 (`trainer/config/*.yaml`), areal 1.0.4
(`api/cli_args.py`), skyrl 0.3.0 (`train/config/config.py`), and from NeMo RL's `examples/configs/grpo_math_1B.yaml`.
Of adapters: verl's `trainer/config/model/hf_model.yaml`, SkyRL's `SkyRLLoraConfig`, AReaL's `TrainEngineConfig` and
`_apply_peft_wrapper`, ms-swift's `TunerArguments`, TRL's `trainer/model_config.py`, PEFT's `tuners/lora/config.py`, and
NeMo RL's guide of LoRA.
"""

from __future__ import annotations

from each import each

from dapo.config.explain import explain
from dapo.config.settings import settings
from dapo.importing.convert import import_text
from dapo.importing.reading import RecipeLine
from tests.unit.importing import defaults_for_tests as facts


@each(("system", "ours"), [(s, key) for s, lines in facts.DEFAULTS.items() for key in lines])
def test_what_is_not_said_is_as_it_is_there(system: str, ours: str) -> None:
    text, name = facts.NOTHING_SAID[system]
    made = import_text(text, name, system=system)
    theirs, own = facts.DEFAULTS[system][ours], settings()[ours].default
    own = list(own) if isinstance(own, tuple) else getattr(own, "kind", own)  # as a recipe has it
    assert (ours in made.reading.lines) == (theirs != own)  # a default that is ours as well has no line
    assert made.reading.lines.get(ours, RecipeLine(own, "", given=False)).value == theirs


def test_ms_swifts_rate_is_that_of_an_adapter_unless_all_is_trained() -> None:
    text, name = facts.NOTHING_SAID["ms-swift"]
    adapter, whole = import_text(text, name).reading, import_text(f"{text} --train_type full", name).reading
    assert adapter.lines["learner.learning_rate"].value == 1e-4
    assert (adapter.lines["model.lora.rank"].value, adapter.lines["model.lora.lora_alpha"].value) == (8, 32.0)
    assert whole.lines["learner.learning_rate"].value == 1e-5
    assert "model.lora.rank" not in whole.lines


def test_ms_swift_evaluates_when_it_saves_where_it_has_held_out_data() -> None:
    text, name = facts.NOTHING_SAID["ms-swift"]
    sizes = "--per_device_train_batch_size 8 --gradient_accumulation_steps 2 --steps_per_generation 8"
    held_out = f"{text} --val_dataset b {sizes}"
    assert import_text(text, name).reading.lines["validation.every"].value == 0
    assert import_text(held_out, name).reading.lines["validation.every"].value == 125  # 500 steps, 4 of each
    assert import_text(f"{held_out} --save_steps 40", name).reading.lines["validation.every"].value == 10


def test_areal_normalises_nothing_unless_told_and_by_the_batch_unless_told() -> None:
    text, name = facts.NOTHING_SAID["areal"]
    nothing = import_text(text, name).reading.lines
    assert nothing["algorithm.advantage.baseline"].value == nothing["algorithm.advantage.scale"].value == "none"
    some = import_text("actor: {ppo_n_minibatches: 1, reward_norm: {eps: 1.0e-4}}\ngconfig: {n_samples: 4}", name)
    assert some.reading.lines["algorithm.advantage.scale"].value == "batch_std"
    assert some.reading.lines["algorithm.advantage.baseline"].value == "batch_mean"


def test_areals_penalty_has_no_default_lengths() -> None:
    made = import_text(
        "actor: {overlong_reward_penalty: true, ppo_n_minibatches: 1}\ngconfig: {n_samples: 4}", "a.yaml"
    )
    assert made.reading.lines["algorithm.overlong_punishment.enabled"].value is False
    assert any("must be given" in said for said in made.reading.said)


def test_explain_knows_keys_that_need_no_place_here() -> None:
    (said,) = explain("actor_rollout_ref.rollout.load_format")
    assert "of verl" in said
    assert "docs/engines.md" in said


@each(
    ("optimizer", "ours"),
    [
        ("adamw_8bit", "adamw_8bit"),
        ("adamw_torch_8bit", "adamw_8bit"),
        ("adamw_torch_fused", "adamw"),
        ("lion_8bit", None),
    ],
)
@each("system", ["trl", "ms-swift"])
def test_moments_in_8_bits_stay_so(system: str, optimizer: str, ours: str | None) -> None:
    text, name = facts.NOTHING_SAID[system]
    made = import_text(f"{text} --optim {optimizer}", name, system=system).reading
    assert getattr(made.lines.get("learner.optimizer"), "value", None) == ours
    assert any(optimizer in apart.what for apart in made.apart) == (optimizer == "lion_8bit")


def test_verls_optimizer_in_8_bits_stays_so() -> None:
    text = "actor_rollout_ref: {model: {path: m}, actor: {optim: {optimizer: AdamW8bit}}}"
    made = import_text(text, "a.yaml", system="verl").reading
    assert made.lines["learner.optimizer"].value == "adamw_8bit"
