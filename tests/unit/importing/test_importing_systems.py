"""Public configurations of six trainers, imported: their arithmetic against numbers worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
from each import each
from ruamel.yaml import YAML

from dapo.config import load_recipe
from dapo.config.checks import penalty_interval
from dapo.config.schema import Recipe
from dapo.config.schema.kinds import MaskOffPolicy
from dapo.importing.convert import Imported, import_text
from tests.unit.importing import configurations_for_tests as public

NO_DATA = ["model.path=builtin/signed-sum", "data.train=[{task: signed_sum}]", "data.validation=[]"]


def imported(text: str, name: str, tmp_path, **more: Any) -> tuple[Imported, Recipe]:
    made = import_text(text, name, **more)
    path = tmp_path / "recipe.yaml"
    path.write_text(made.text)
    known = {"trainer.steps": 1_000_000, "learner.warmup": 0}  # with the data, which are elsewhere, they are counted
    counted = [
        f"{key}={value}"
        for key, value in known.items()
        if key in made.reading.lines and made.reading.lines[key].fill_in
    ]
    return made, load_recipe(path, [*NO_DATA, *counted]).recipe


def arithmetic(r: Recipe) -> dict[str, Any]:
    """What a training step is made of, from a loaded recipe."""
    longest, cache = penalty_interval(r)
    mini = r.learner.minibatch_prompts or r.rollout.prompts_per_step
    sampling = r.algorithm.dynamic_sampling
    capped = sampling.mode == "filter" and sampling.cap.groups is not None
    return {
        "prompts": r.rollout.prompts_per_step,
        "responses": r.rollout.prompts_per_step * r.rollout.group_size,
        "updates": r.rollout.prompts_per_step // mini,
        "first round": round(r.rollout.prompts_per_step * (sampling.oversample or 1)),
        "cap": round(sampling.cap.groups * r.rollout.prompts_per_step) if capped and sampling.cap.groups else None,
        "ratio": (round(1 - r.algorithm.clip.low, 6), round(1 + r.algorithm.clip.high, 6)),
        "dual": r.algorithm.clip.dual,
        "penalised": (longest - cache, longest) if r.algorithm.overlong_punishment.enabled else None,
        "limit": r.rollout.max_response_tokens,
        "reduction": r.algorithm.loss.reduction.kind,
        "kl": r.algorithm.kl_coefficient,
    }


PAPER = {"prompts": 512, "responses": 8192, "updates": 16, "first round": 1536, "cap": 15360, "ratio": (0.8, 1.28)}
CASES = {
    # 20 x 1024 tokens, of which 4 x 1024 are the buffer; 10 rounds of 1536 prompts; 512 / 32 updates
    "verl": (
        "run.sh",
        public.VERL_32B,
        {**PAPER, "dual": 10, "penalised": (16384, 20480), "limit": 20480, "reduction": "token_mean", "kl": 0},
    ),
    # 512 responses an update are 32 prompts of 16; 14336 - 2048
    "nemo-rl": (
        "dapo.yaml",
        public.NEMO_7B,
        {**PAPER, "dual": 10, "penalised": (12288, 14336), "limit": 16384, "reduction": "token_mean", "kl": 0},
    ),
    # the page's block alone: the rest are NeMo RL's defaults, among them KL 0.01
    "nemo-rl page": (
        "page.yaml",
        public.NEMO_PAGE,
        {**PAPER, "dual": None, "penalised": (16384, 20480), "limit": 20480, "reduction": "token_mean", "kl": 0.01},
    ),
    # 30 batches of 1024; 1024 / 256 updates; 1024 - 512
    "skyrl": (
        "run_dapo_gsm8k.sh",
        public.SKYRL_GSM8K,
        {"prompts": 1024, "responses": 5120, "updates": 4, "first round": 1024, "cap": 30720, "ratio": (0.8, 1.28)}
        | {"dual": 10, "penalised": (512, 1024), "limit": 1024, "reduction": "micro_batch_mean", "kl": 0},
    ),
    "areal": (
        "gsm8k_dapo.yaml",
        public.AREAL_GSM8K,
        {"prompts": 256, "responses": 1024, "updates": 1, "first round": 256, "cap": None, "ratio": (0.8, 1.28)}
        | {"dual": None, "penalised": (3584, 4096), "limit": 4096, "reduction": "token_mean", "kl": 0},
    ),
    # 4 rows x 16 slices x 8 devices = 512 responses, an update of 4 x 8 x 8 = 256; the batch and 3 more
    "ms-swift": (
        "dapo.sh",
        public.SWIFT_PAGE,
        {"prompts": 32, "responses": 512, "updates": 2, "first round": 32, "cap": 128, "ratio": (0.8, 1.28)}
        | {"dual": None, "penalised": (4096, 8192), "limit": 8192, "reduction": "micro_batch_mean", "kl": 0},
    ),
    # 8 rows x 8 slices = 64 responses, an update of 8 x 4 = 32
    "trl": (
        "train.py",
        public.TRL_SCRIPT,
        {"prompts": 4, "responses": 64, "updates": 2, "first round": 4, "cap": None, "ratio": (0.8, 1.28)}
        | {"dual": None, "penalised": (768, 1024), "limit": 1024, "reduction": "token_mean", "kl": 0},
    ),
}


MATH_7B = {**PAPER, "first round": 512, "cap": None, "dual": 10, "penalised": (4096, 8192), "limit": 8192, "kl": 0}
FURTHER = {
    # no filter in verl.trainer.main_ppo; 8 x 1024 tokens, of which 4 x 1024 are the buffer
    "verl 7B": ("math.sh", public.VERL_7B_MATH, {**MATH_7B, "reduction": "token_mean"}),
    # the recipe's first form: 2 x 1024 tokens, of which 512 are the buffer; a dual clip of 3 is verl's default
    "verl 7B first": (
        "first.sh",
        public.VERL_7B_FIRST,
        {**PAPER, "dual": 3, "penalised": (1536, 2048), "limit": 2048, "reduction": "token_mean", "kl": 0},
    ),
    # 96 / 32 = 3 times as many prompts a round, ten rounds of them; 20 x 1024 - 512
    "verl 30B": (
        "fp8.sh",
        public.VERL_30B_FP8,
        {"prompts": 32, "responses": 512, "updates": 1, "first round": 96, "cap": 960, "ratio": (0.8, 1.28), "dual": 10}
        | {"penalised": (19968, 20480), "limit": 20480, "reduction": "token_mean", "kl": 0},
    ),
    # 256 x 16 / 512 (grpo_math_1B's train_global_batch_size) = 8 updates; 3 x 256 prompts a round, ten rounds
    "nemo-rl 671B": (
        "dsv3.yaml",
        public.NEMO_671B,
        {"prompts": 256, "responses": 4096, "updates": 8, "first round": 768, "cap": 7680, "ratio": (0.8, 1.28)}
        | {"dual": 10, "penalised": (4096, 6144), "limit": 8192, "reduction": "token_mean", "kl": 0},
    ),
    "nemo-rl 9B": (
        "9b.yaml",
        public.NEMO_9B,
        {"prompts": 32, "responses": 512, "updates": 1, "first round": 32, "cap": None, "ratio": (0.8, 1.28)}
        | {"dual": 10, "penalised": (7680, 8192), "limit": 8192, "reduction": "token_mean", "kl": 0},
    ),
    "skyrl 1.7B": ("aime.sh", public.SKYRL_1_7B, {**MATH_7B, "reduction": "token_mean"}),
    "skyrl 7B": ("7b.sh", public.SKYRL_7B, {**MATH_7B, "reduction": "micro_batch_mean"}),
    "skyrl 30B": ("lora.sh", public.SKYRL_30B_LORA, {**MATH_7B, "reduction": "micro_batch_mean"}),
    "skyrl async": (
        "async.sh",
        public.SKYRL_ASYNC,
        {**MATH_7B, "prompts": 32, "responses": 512, "updates": 1, "first round": 32, "reduction": "token_mean"},
    ),
    "areal dynamic": ("dapo_dynamic_bs.yaml", public.AREAL_DYNAMIC, CASES["areal"][2]),
    # 8 rows x 2 slices x 2 devices = 32 responses, an update of as many, three times over; the batch and 3 more
    "ms-swift 1.5B": (
        "fipo.sh",
        public.SWIFT_FIPO.replace("LOSS", "dapo"),
        {"prompts": 4, "responses": 32, "updates": 1, "first round": 4, "cap": 16, "ratio": (0.8, 1.28), "dual": 10}
        | {"penalised": None, "limit": 4096, "reduction": "token_mean", "kl": 0},
    ),
}


@pytest.mark.parametrize("case", FURTHER)
def test_the_arithmetic_of_another_size(case: str, tmp_path) -> None:
    name, text, expected = FURTHER[case]
    made, recipe = imported(text, name, tmp_path)
    assert made.system == case.partition(" ")[0]
    assert made.refused == ""
    assert arithmetic(recipe) == expected


def test_what_the_other_sizes_have_of_their_own(tmp_path) -> None:
    def recipe(text: str, name: str = "a.sh") -> Recipe:
        return imported(text, name, tmp_path)[1]

    fp8 = recipe(public.VERL_30B_FP8)
    assert (fp8.algorithm.correction.kind, fp8.algorithm.correction.cap) == ("truncate", 2.0)
    assert (fp8.trainer.steps, fp8.data.max_prompt_tokens) == (500, 1024)
    big = recipe(public.NEMO_671B, "a.yaml")
    assert (big.learner.learning_rate, big.trainer.steps) == (5e-7, 10)
    nine = recipe(public.NEMO_9B, "a.yaml")
    assert (nine.learner.learning_rate, nine.learner.weight_decay, nine.learner.warmup) == (1e-6, 0.1, 5)
    assert (nine.algorithm.correction.kind, nine.algorithm.correction.cap) == ("truncate", 2.0)
    lora = recipe(public.SKYRL_30B_LORA)
    assert (lora.model.lora.rank, lora.model.lora.lora_alpha, lora.learner.learning_rate) == (128, 128, 1e-5)
    assert (lora.algorithm.correction.kind, lora.algorithm.correction.cap) == ("truncate", 2.0)
    assert (lora.learner.warmup, lora.learner.schedule_unit, lora.validation.samples) == (160, "optimizer", 32)
    assert recipe(public.SKYRL_ASYNC).rollout.max_staleness == 8
    dynamic = recipe(public.AREAL_DYNAMIC, "a.yaml")
    assert (dynamic.algorithm.dynamic_sampling.mode, dynamic.rollout.max_staleness) == ("off", 2)
    assert dynamic.learner.betas == (0.9, 0.999)


def test_a_loss_that_is_none_of_ours_is_listed_with_what_is_taken() -> None:
    made = import_text(public.SWIFT_FIPO.replace("LOSS", "fipo"), "fipo.sh")
    assert "# - loss_type = fipo: has no counterpart; `algorithm.loss.reduction` keeps its default" in made.text
    assert made.reading.lines["rollout.server.url"].value == "http://127.0.0.1:8000"


@pytest.mark.parametrize(
    ("style", "expected"), [("cosine", ("cosine", 0.1)), ("linear", ("linear", 0.1)), ("WSD", ("constant", None))]
)
def test_megatron_has_an_optimiser_of_its_own_in_nemo_rl(style: str, expected: tuple[str, float | None]) -> None:
    text = public.NEMO_9B.replace("lr_decay_style: constant", f"lr_decay_style: {style}")
    lines = import_text(
        text.replace("policy:\n", "policy:\n  optimizer: {kwargs: {lr: 3.0}}\n"), "a.yaml"
    ).reading.lines
    ratio = lines.get("learner.final_ratio")
    assert (lines["learner.schedule"].value, ratio and round(ratio.value, 9)) == expected
    assert lines["learner.learning_rate"].value == 1e-6  # and not the one that is not read
    plain = import_text(text.replace("    enabled: true\n    optimizer", "    enabled: false\n    optimizer"), "a.yaml")
    assert plain.reading.lines["learner.learning_rate"].value == 5e-6


@each(
    ("text", "name", "expected"),
    [
        (
            "actor_rollout_ref: {rollout: {n: 8}, model: {lora_rank: 32, lora_alpha: 64, target_modules: all-linear}}",
            "a.yaml",
            (32, 64, "all-linear"),
        ),
        ("actor_rollout_ref: {rollout: {n: 8}, model: {lora_rank: 0, lora_alpha: 16}}", "a.yaml", None),
        (
            "grpo: {num_prompts_per_step: 4}\npolicy: {dtensor_cfg: {lora_cfg: {enabled: true, dim: 16, "
            "target_modules: [q_proj], match_all_linear: false, dropout: 0.1}}}",
            "a.yaml",
            (16, 32, ["q_proj"]),
        ),
        (  # match_all_linear is true unless set, and goes before target_modules
            "grpo: {num_prompts_per_step: 4}\npolicy: {dtensor_cfg: {lora_cfg: {enabled: true, "
            "target_modules: [q_proj]}}}",
            "a.yaml",
            (8, 32, None),
        ),
        (
            "grpo: {num_prompts_per_step: 4}\npolicy: {megatron_cfg: {enabled: true, peft: {enabled: true}}}",
            "a.yaml",
            (32, 32, None),
        ),
        ("trl grpo --use_peft --num_generations 4 --model_name_or_path m", "a.sh", (16, 32, None)),
        ("trl grpo --use_peft --num_generations 4 --model_name_or_path m --lora_r 4", "a.sh", (4, 32, None)),
        (
            "from trl import GRPOConfig\nfrom peft import LoraConfig\nGRPOConfig(num_generations=4)\n"
            "LoraConfig(r=4, target_modules='all-linear')",
            "a.py",
            (4, 8, "all-linear"),
        ),
        (
            "grpo: {num_prompts_per_step: 4}\npolicy: {dtensor_cfg: {lora_cfg: {enabled: false, dim: 16}}}",
            "a.yaml",
            None,
        ),
        (
            "gconfig: {n_samples: 4}\nactor: {path: m, use_lora: true, lora_rank: 8, lora_alpha: 8}",
            "a.yaml",
            (8, 8, None),
        ),
        (
            "gconfig: {n_samples: 4}\nactor: {path: m, use_lora: true, target_modules: []}",
            "a.yaml",
            (32, 16, "all-linear"),
        ),
        ("gconfig: {n_samples: 4}\nactor: {path: m, lora_rank: 8}", "a.yaml", None),
    ],
)
def test_an_adapter_comes_along(text: str, name: str, expected: tuple[Any, ...] | None) -> None:
    made = import_text(text, name)
    assert made.refused == ""
    found = [made.reading.lines.get(f"model.lora.{key}") for key in ("rank", "lora_alpha", "target_modules")]
    values = tuple(line and line.value for line in found)
    assert values == (expected or (None, None, None))
    assert ("dropout = 0.1: an adapter has no dropout here" in made.text) == ("dropout" in text)


def test_a_default_that_a_script_assigns_holds_for_what_follows() -> None:
    """As ``: "${X:=8}"`` does, unless it was set before; the first use of a plain default does not."""
    script = 'N=4\n: "${N:=8}" ${G:=8} ${P:-64}\npython -m verl.trainer.main_ppo data.train_batch_size=$P '
    script += (
        "actor_rollout_ref.rollout.n=$G actor_rollout_ref.actor.ppo_mini_batch_size=$N algorithm.adv_estimator=grpo"
    )
    made = import_text(script, "a.sh")
    assert made.reading.lines["rollout.group_size"].value == 8
    assert made.reading.lines["learner.minibatch_prompts"].value == 4
    assert "$P is set outside of the script" in made.text


@pytest.mark.parametrize("case", CASES)
def test_the_arithmetic_of_a_public_configuration(case: str, tmp_path) -> None:
    name, text, expected = CASES[case]
    made, recipe = imported(text, name, tmp_path)
    assert made.system == case.removesuffix(" page")
    assert made.refused == ""
    assert arithmetic(recipe) == expected


@each("case", [*CASES, *FURTHER])
def test_every_line_says_where_it_came_from_and_no_key_is_lost(case: str) -> None:
    name, text, _ = (CASES | FURTHER)[case]
    made = import_text(text, name)
    loaded = YAML(typ="safe").load(made.text)
    for line in made.text.splitlines():
        if line and not line.startswith("#") and not line.rstrip().endswith(":"):
            assert line.partition("# ")[2].strip(), line
    assert loaded["preset"] == "dapo"
    reading = made.reading
    listed = {entry.what.partition(" = ")[0] for entry in reading.apart}
    assert [key for key in reading.source.settings if key not in reading.used and key not in listed] == []


def test_what_other_trainers_do_by_default_is_written_too(tmp_path) -> None:
    """An empty command of verl: its defaults, none of which is DAPO's."""
    made, recipe = imported("data: {train_batch_size: 64}\nactor_rollout_ref: {rollout: {n: 8}}", "a.yaml", tmp_path)
    assert recipe.algorithm.clip.high == 0.2
    assert recipe.algorithm.clip.dual == 3
    assert recipe.algorithm.dynamic_sampling.mode == "off"
    assert not recipe.algorithm.overlong_punishment.enabled
    assert not recipe.algorithm.overlong_filtering
    assert (recipe.algorithm.old_logprobs, recipe.algorithm.correction.kind) == ("learner", "none")
    assert "verl's default of actor_rollout_ref.actor.clip_ratio_c" in made.text
    assert recipe.learner.minibatch_prompts == 64  # 256 there, more than there are prompts: said
    assert any("more than the 64 prompts" in said for said in made.reading.said)


@pytest.mark.parametrize(("staleness", "expected"), [(0, "sampler"), (1, "sampler"), (2, "interpolated")])
def test_areals_loglinear_is_the_same_equation(staleness: int, expected: str, tmp_path) -> None:
    """Which at ages of 0 and 1 is the sampler's own number."""
    text = public.AREAL_GSM8K.replace(
        "use_decoupled_loss: true", "use_decoupled_loss: true\n  prox_logp_method: loglinear"
    )
    text = text.replace("max_head_offpolicyness: 2", f"max_head_offpolicyness: {staleness}")
    _, recipe = imported(text, "a.yaml", tmp_path)
    assert recipe.algorithm.old_logprobs == expected


def test_areals_penalty_is_scaled_along_with_the_reward(tmp_path) -> None:
    """(r + f x penalty - 0.5) x 10 of AReaL is our map of r to -5..5, and 10 x f x penalty."""
    _, recipe = imported(public.AREAL_GSM8K, "a.yaml", tmp_path)
    scaling, punishment = recipe.algorithm.reward_scaling, recipe.algorithm.overlong_punishment
    for raw in (0.0, 0.25, 1.0):
        for penalty in (0.0, -0.5, -1.0):
            theirs = (raw + 1.0 * penalty - 0.5) * 10.0
            ours = scaling.target_min + raw * (scaling.target_max - scaling.target_min) + punishment.factor * penalty
            assert math.isclose(ours, theirs, abs_tol=1e-12)


def test_devices_are_counted(tmp_path) -> None:
    _, recipe = imported(public.TRL_SCRIPT, "train.py", tmp_path, devices=4)
    assert recipe.rollout.prompts_per_step == 16
    assert recipe.learner.minibatch_prompts == 8
    assert recipe.trainer.steps == 50  # 100 optimiser steps, 2 of each


@pytest.mark.parametrize(
    ("text", "name", "idle"),
    [
        ("trl grpo --model_name_or_path m --scale_rewards none", "a.sh", "algorithm.advantage.eps"),
        ("trl grpo --model_name_or_path m --loss_type sapo --epsilon_high 0.3", "a.sh", "algorithm.clip.high"),
        (
            "gconfig: {n_samples: 8}\nactor: {reward_norm: {mean_level: group, std_level: null, eps: 0.5}}",
            "a.yaml",
            "algorithm.advantage.eps",
        ),
    ],
)
def test_a_line_that_nothing_would_read_is_left_out(text: str, name: str, idle: str) -> None:
    """Listed with the reason where the source says it; the other trainer's own default goes without a word."""
    source = None if name == "a.sh" else "areal"
    made = import_text(text, name, source)
    assert made.refused == ""
    assert idle not in made.reading.lines
    assert ("algorithm.advantage.scale" in made.reading.lines) == ("sapo" not in text)
    listed = [entry.what for entry in made.reading.apart if f"nothing would read `{idle}`" in entry.reason]
    given = {"sapo": "epsilon_high = 0.3", "std_level": "actor.reward_norm.eps = 0.5"}
    assert listed == [what for word, what in given.items() if word in text]


def test_trls_rollouts_serve_as_many_passes_here(tmp_path) -> None:
    """60 optimiser steps of 2 a pass and 3 passes are 10 training steps; of one pass they are 30."""
    sizes = "num_generations=8, gradient_accumulation_steps=2, steps_per_generation=4, max_steps=60"
    _, once = imported(f"from trl import GRPOConfig\na = GRPOConfig({sizes})", "a.py", tmp_path)
    assert (once.learner.epochs_per_rollout, once.trainer.steps) == (1, 30)
    thrice = f"from trl import GRPOConfig\na = GRPOConfig({sizes}, num_iterations=3)"
    made, recipe = imported(thrice, "a.py", tmp_path)
    assert (recipe.learner.epochs_per_rollout, recipe.trainer.steps) == (3, 10)
    assert "num_iterations = 3: later passes draw their minibatches again here" in made.text


@pytest.mark.parametrize(
    ("text", "name", "said"),
    [
        (
            "from trl import GRPOConfig\na = GRPOConfig(use_vllm=True, off_policy_mask_threshold=0.3)",
            "a.py",
            "off_policy_mask_threshold and sequence_mask",
        ),
        ("swift rlhf --rlhf_type grpo --off_policy_sequence_mask_delta 0.3 --generation_batch_size 8", "a.sh", ""),
    ],
)
def test_the_off_policy_mask_is_imported(text: str, name: str, said: str, tmp_path) -> None:
    made, recipe = imported(text, name, tmp_path)
    assert recipe.algorithm.correction == MaskOffPolicy(threshold=0.3)
    assert said in made.text


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("actor_rollout_ref: {actor: {ppo_epochs: 4}, rollout: {n: 8}}", "a.yaml"),
        ("trainer: {update_epochs_per_batch: 4}\ngenerator: {n_samples_per_prompt: 4}", "a.yaml"),
        ("swift rlhf --rlhf_type grpo --num_iterations 4 --num_generations 8", "a.sh"),
    ],
)
def test_passes_over_a_rollout_are_imported(text: str, name: str) -> None:
    made = import_text(text, name)
    assert made.refused == ""
    assert made.reading.lines["learner.epochs_per_rollout"].value == 4


def test_an_update_that_is_no_whole_groups_is_said() -> None:
    made = import_text("grpo: {num_prompts_per_step: 4}\npolicy: {train_global_batch_size: 24}", "a.yaml")
    assert made.reading.lines["learner.minibatch_prompts"].value == 4
    assert any("no whole groups of 16" in said for said in made.reading.said)


def test_what_means_something_else_is_said() -> None:
    text = import_text(public.NEMO_7B, "dapo.yaml").text
    assert "to -2 x factor at 16384 tokens in NeMo RL" in text
    assert "and a whole round again in NeMo RL" in text
    assert "grpo_math_1B.yaml: could not be read: it is not there; NeMo RL's usual defaults are taken" in text
    text = import_text(public.SWIFT_PAGE, "a.sh").text
    assert "bnpo is a mean over micro-batches" in text
    assert "the batch and 3 more" in text


@pytest.mark.parametrize(
    ("text", "name", "kind"),
    [
        (
            "actor_rollout_ref: {rollout: {n: 8}, actor: {policy_loss: {loss_mode: clip_cov, clip_cov_lb: 2.0}}}",
            "a.yaml",
            "clip_cov",
        ),
        ("trainer: {algorithm: {policy_loss_type: kl_cov}}", "a.yaml", "kl_cov"),
        ("trl grpo --model_name_or_path m --loss_type sapo --delta 3", "a.sh", "sapo"),
    ],
)
def test_other_losses_keep_their_names_and_lose_the_dual_clip(text: str, name: str, kind: str) -> None:
    made = import_text(text, name)
    assert made.refused == ""
    assert made.reading.lines["algorithm.loss.kind"].value == kind
    assert "algorithm.clip.dual" not in made.reading.lines


def test_a_dropout_that_another_trainer_has_unless_told_is_said() -> None:
    for text in ("swift rlhf --rlhf_type grpo --model m --dataset a", "trl grpo --model_name_or_path m --use_peft"):
        assert any("lora_dropout is 0.05" in said for said in import_text(text, "a.sh").reading.said)
        assert not any("is 0.05" in said for said in import_text(f"{text} --lora_dropout 0", "a.sh").reading.said)


@each(
    ("given", "expected"),
    [  # k1 is log sampler - log learner, so that the bounds of our ratio, learner over sampler, are 1/up and 1/low
        (
            "rollout_is: token, rollout_rs: seq_mean_k1, rollout_rs_threshold: '0.8_2.0'",
            ("mask_sequence", 0.5, 1.25, 0),
        ),
        ("rollout_rs: token_k1, rollout_rs_threshold: '0.5_4.0'", ("mask_token", 0.25, 2.0, 0)),
        ("rollout_rs: token_k1, rollout_rs_threshold: 4.0", ("mask_token", 0.25, 4.0, 0)),
        (
            "rollout_rs: geometric, rollout_rs_threshold: 1.25, rollout_rs_threshold_lower: 0.5",
            ("mask_sequence", 0.5, 1.25, None),
        ),  # the earlier names compare learner over sampler
        ("rollout_rs: seq_max_k2, rollout_rs_threshold: 3.0", ("none", 0, 0, 0)),
        ("rollout_rs: seq_mean_k1, rollout_rs_threshold: '2.0_0.5'", ("none", 0, 0, 0)),
    ],
)
def test_verls_rejection_bounds_are_of_the_inverse_ratio(given: str, expected: tuple[Any, ...]) -> None:
    made = import_text(
        f"actor_rollout_ref: {{rollout: {{n: 4}}}}\nalgorithm: {{rollout_correction: {{{given}}}}}", "a.yaml"
    )
    lines = made.reading.lines
    assert made.refused == ""
    found = [lines.get(f"algorithm.correction.{key}") for key in ("kind", "floor", "cap", "token_cap")]
    assert [line.value if line else 0 for line in found] == list(expected)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("get_soft_overlong_punishment(max_completion_len=LIMIT, soft_punish_cache=LIMIT // 8)", (3072, 384)),
        ("get_soft_overlong_punishment(soft_punish_cache=512, max_completion_len=3072)", (3072, 512)),
        ("get_soft_overlong_punishment(3072, 512)", (3072, 512)),
        ("get_soft_overlong_punishment", (1280, 256)),  # TRL's own, by its name
        ("get_soft_overlong_punishment(n, m)", (None, None)),
    ],
)
def test_the_lengths_of_trls_penalty_may_be_names_of_numbers(call: str, expected: tuple[Any, ...]) -> None:
    text = "from trl import GRPOConfig, GRPOTrainer\nLIMIT = 3072\na = GRPOConfig(max_completion_length=LIMIT)\n"
    made = import_text(f"{text}GRPOTrainer(args=a, reward_funcs=[accuracy_reward, {call}])", "a.py")
    lines = made.reading.lines
    assert made.refused == ""
    found = [lines.get(f"algorithm.overlong_punishment.{key}") for key in ("max_length", "cache_length")]
    assert tuple(line and line.value for line in found) == expected
    assert lines["algorithm.overlong_punishment.enabled"].value is True
    assert ("known only when it runs" in made.text) == (expected[0] is None)


@pytest.mark.parametrize(
    ("given", "greedy"), [("temperature: 0.8", False), ("n: 4", True), ("do_sample: true, temperature: 0.8", False)]
)
def test_verl_evaluates_at_its_temperature_and_greedily_at_none(given: str, greedy: bool) -> None:
    text = f"actor_rollout_ref: {{rollout: {{n: 4, val_kwargs: {{{given}}}}}}}"
    lines = import_text(text, "a.yaml").reading.lines
    assert ("validation.greedy" not in lines) is greedy
    assert greedy or lines["validation.temperature"].value == 0.8
