"""Each command and each block of the trainers' own DAPO pages is imported, or refused with the file that it lacks."""

from __future__ import annotations

import pytest
from each import each

from dapo.config.explain import explain
from dapo.errors import RecipeError
from dapo.importing.convert import import_text

SIZES = "grpo.ratio_clip_min=0.15 grpo.ratio_clip_max=0.25 logger.wandb_enabled=True"
ONE_GPU = (
    f'uv run python examples/run_grpo_math.py policy.model_name="Qwen/Qwen2.5-1.5B" {SIZES} logger.wandb.name="one"'
)
EIGHT = (
    f'uv run python examples/run_grpo_math.py cluster.gpus_per_node=8 {SIZES} checkpointing.checkpoint_dir="results/x"'
)
NODES = (
    'NUM_ACTOR_NODES=2\nCOMMAND="uv run ./examples/run_grpo_math.py --config examples/configs/grpo_math_8B.yaml '
    f'cluster.num_nodes=2 {SIZES}" CONTAINER=C MOUNTS="$PWD:$PWD" sbatch --nodes=$NUM_ACTOR_NODES --gres=gpu:8 ray.sub'
)
SWIFT = (
    "swift rlhf --rlhf_type grpo --loss_type bnpo --epsilon_high 0.28 --dynamic_sample true --max_resample_times 3 "
    "--overlong_filter true --reward_funcs soft_overlong --soft_cache_length 4096 --max_completion_length 8192"
)
IMPORTED = {
    "NeMo RL, one GPU": (ONE_GPU, "a.sh", {"algorithm.clip.low": 0.15, "algorithm.clip.high": 0.25}),
    "NeMo RL, eight GPUs": (EIGHT, "a.sh", {"algorithm.clip.high": 0.25, "algorithm.kl_coefficient": 0.01}),
    "NeMo RL, the clip": ("grpo: {ratio_clip_min: 0.15, ratio_clip_max: 0.25}", "a.yaml", {"algorithm.clip.low": 0.15}),
    "NeMo RL, the loss": (
        "loss_fn: {ratio_clip_max: 0.28, token_level_loss: true}",
        "a.yaml",
        {"algorithm.clip.high": 0.28},
    ),
    "AReaL": (
        "actor: {overlong_reward_penalty: true, overlong_tokens: 512, overlong_penalty_factor: 1.0, eps_clip: 0.2, "
        "eps_clip_higher: 0.28, dynamic_sampling: true}\ngconfig: {n_samples: 4}",
        "gsm8k_dapo.yaml",
        {"algorithm.clip.high": 0.28, "algorithm.dynamic_sampling.mode": "mask"},
    ),
    "SkyRL, clip": (
        "trainer: {algorithm: {eps_clip_low: 0.2, eps_clip_high: 0.28}}",
        "a.yaml",
        {"algorithm.clip.high": 0.28},
    ),
    "SkyRL, filter": (
        "trainer: {algorithm: {dynamic_sampling: {type: filter, max_sample_batches: 30}}}",
        "a.yaml",
        {"algorithm.dynamic_sampling.mode": "filter", "algorithm.dynamic_sampling.cap.groups": 30.0},
    ),
    "SkyRL, reduction": (
        "trainer: {algorithm: {loss_reduction: token_mean}}",
        "a.yaml",
        {"algorithm.loss.reduction": "token_mean"},
    ),
    "SkyRL, overlong": (
        "generator: {apply_overlong_filtering: true}",
        "a.yaml",
        {"algorithm.overlong_filtering": True},
    ),
    "SkyRL, penalty": (
        "uv run -m examples.algorithms.dapo.main_dapo trainer.epochs=1 +trainer.algorithm.overlong_buffer.len=512 "
        "+trainer.algorithm.overlong_buffer.penalty_factor=1.0",
        "a.sh",
        {"algorithm.overlong_punishment.cache_length": 512},
    ),
    "ms-swift": (SWIFT, "a.sh", {"algorithm.clip.high": 0.28, "algorithm.overlong_punishment.cache_length": 4096}),
}
REFUSED = {
    "NeMo RL, quickstart": (
        "uv run examples/run_grpo_math.py --config examples/configs/recipes/llm/dapo-qwen2.5-7b.yaml {overrides}",
        "dapo-qwen2.5-7b.yaml, which is not there.*dapo_qwen2.5_7b_8gpu",
    ),
    "NeMo RL, two nodes": (NODES, "grpo_math_8B.yaml, which is not there.*dapo_qwen3_8b_2nodes"),
    "AReaL, local": (
        "python3 -m areal.launcher.local examples/experimental/dapo/gsm8k_dapo.py "
        "--config examples/experimental/dapo/gsm8k_dapo.yaml",
        "gsm8k_dapo.yaml, which is not there.*gsm8k_0.5b_1gpu",
    ),
    "SkyRL, script": (
        "export WANDB_API_KEY=mine\nbash examples/algorithms/dapo/run_dapo_gsm8k.sh",
        "run_dapo_gsm8k.sh, which is not there.*gsm8k_0.5b_1gpu",
    ),
}


@each("case", IMPORTED)
def test_a_block_or_command_of_a_page_is_imported(case: str) -> None:
    text, name, expected = IMPORTED[case]
    made = import_text(text, name, None if "SkyRL" not in case else "skyrl")
    assert made.reading.title == case.partition(",")[0]
    assert made.refused == ""
    assert {key: made.reading.lines[key].value for key in expected} == expected
    assert not made.text.startswith("# CAUTION")


@pytest.mark.parametrize("case", REFUSED)
def test_a_command_of_a_page_that_lacks_its_file_is_refused(case: str) -> None:
    text, said = REFUSED[case]
    with pytest.raises(RecipeError, match=said):
        import_text(text, "run.sh")


NAMES = {
    "AReaL": """actor.overlong_reward_penalty actor.overlong_tokens actor.overlong_penalty_factor actor.eps_clip
        actor.eps_clip_higher actor.dynamic_sampling gsm8k_dapo.yaml""",
    "ms-swift": """epsilon epsilon_high --epsilon_high dynamic_sample --dynamic_sample max_resample_times
        --max_resample_times --loss_type bnpo overlong_filter --overlong_filter reward_funcs --reward_funcs
        soft_overlong soft_max_length soft_cache_length --soft_cache_length max_completion_length L_max L_cache
        Clip-Higher Dynamic-Sampling Token-level-Loss Overlong-Filtering Soft-Overlong-Punishment""",
    "NeMo RL": """use_dynamic_sampling num_prompts_per_step num_generations_per_prompt batch_multiplier
        dynamic_sampling_max_gen_batches reward_scaling source_min source_max target_min target_max reward_shaping
        overlong_buffer_length overlong_buffer_penalty max_response_length dynamic_sampling_num_gen_batches
        dynamic_sampling_num_discarded_valid_samples filtered_reward loss_fn ratio_clip_min ratio_clip_max
        token_level_loss apply_reward_shaping dynamic_sampling examples/configs/recipes/llm/dapo-qwen2.5-7b.yaml
        examples/run_grpo_math.py --config HF_HOME WANDB_API_KEY HF_DATASETS_CACHE Clip-Higher
        Token-Level-Policy-Gradient-Loss Overlong-Reward-Shaping ClippedPGLossFn policy.model_name grpo.ratio_clip_max
        checkpointing.checkpoint_dir logger.wandb_enabled logger.wandb.name cluster.gpus_per_node cluster.num_nodes
        examples/configs/grpo_math_8B.yaml NUM_ACTOR_NODES CONTAINER MOUNTS sbatch --nodes --account --job-name
        --partition --time --gres ray.sub""",
    "SkyRL": """trainer.algorithm.eps_clip_low trainer.algorithm.eps_clip_high trainer.algorithm.dynamic_sampling.type
        filter max_sample_batches trainer.algorithm.loss_reduction token_mean generator.apply_overlong_filtering
        RayPPOTrainer postprocess_generator_output examples/algorithms/dapo/main_dapo.py DAPOTrainer DAPOExp BasePPOExp
        get_trainer skyrl_entrypoint GeneratorOutput overlong_buffer.len overlong_buffer.penalty_factor
        +trainer.algorithm.overlong_buffer.len examples/algorithms/dapo/run_dapo_gsm8k.sh""",
}
"""What the five pages name: keys, values, sections, programs, files, classes, options of sbatch."""


@pytest.mark.parametrize("page", NAMES)
def test_explain_knows_each_name_of_a_page(page: str) -> None:
    unknown = []
    for name in NAMES[page].split():
        try:
            assert explain(name)
        except RecipeError:
            unknown.append(name)
    assert unknown == []


@pytest.mark.parametrize(("name", "said"), [("max_resample_times", "N + 1"), ("max_sample_batches", "no limit")])
def test_explain_says_the_arithmetic_of_a_cap(name: str, said: str) -> None:
    assert said in explain(name)[0]
