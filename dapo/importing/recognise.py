"""Whose configuration it is, by its keys and the programs it names."""

from __future__ import annotations

import re

from dapo.config.peer_names import AREAL, NEMO, SKYRL, SWIFT, TRL, VERL
from dapo.config.settings import lookup
from dapo.errors import RecipeError
from dapo.importing.contents import SourceFile
from dapo.importing.script_source import APART

SYSTEMS = {"nemo-rl": NEMO, "skyrl": SKYRL, "areal": AREAL, "ms-swift": SWIFT, "verl": VERL, "trl": TRL}
_KEYS = {
    "nemo-rl": r"grpo\.|loss_fn\.|policy\.(model_name|generation|train_global|optimizer|max_|dtensor)|env\.math",
    "skyrl": r"trainer\.(algorithm|policy|placement|epochs|policy_mini|eval_|ckpt_)|generator\.|environment\.env_class",
    "areal": r"gconfig\.|actor\.|train_dataset\.|allocation_mode|rollout\.max_head|saver\.|evaluator\.|recover\.|"
    r"dynamic_bs",
    "ms-swift": r"rlhf_type|dynamic_sample$|max_resample_times|overlong_filter$|soft_(max|cache)_length|train_type|"
    r"sleep_level|external_plugins|tuner_type|rollout_importance_sampling|vllm_max_model_len$|dataset$|torch_dtype$",
    "verl": r"actor_rollout_ref\.|data\.(train_batch_size|gen_batch|train_files)|"
    r"algorithm\.(adv_est|filter_groups|kl_ctrl)|reward_model\.|critic\.|trainer\.(n_gpus_per_node|nnodes|total_epochs|test_freq)",
    "trl": r"mask_truncated_completions|model_name_or_path|vllm_importance_sampling|use_transformers_paged|vllm_mode$|"
    r"dataset_name$|vllm_enable_sleep",
}
_WORDS = {
    "nemo-rl": {"run_grpo", "run_grpo_math", "nemo_rl"},
    "skyrl": {"skyrl_train", "skyrl", "main_dapo_fully_async", "skyrl-train"},
    "areal": {"areal", "gsm8k_rl"},
    "ms-swift": {"swift", "RLHFArguments"},
    "verl": {"verl", "main_ppo"},
    "trl": {"trl", "GRPOConfig", "GRPOTrainer"},
}
_SHARED = r"num_generations$|loss_type$|epsilon(_high|_low)?$|per_device_train_batch_size$|max_completion_length$|beta$"


def recognise(source: SourceFile, said: str | None = None) -> str:
    """Return the name of the system, as ``--from`` takes it.

    Args:
        source: with its settings.
        said: the name that the user gives; None: the keys decide.

    Raises:
        RecipeError: there is no setting, or nothing or too much speaks for one; the message says what was seen.
    """
    if not source.settings:
        raise RecipeError(_nothing(source))
    if said is not None:
        return said
    scores = dict.fromkeys(SYSTEMS, 0)
    for name in SYSTEMS:
        scores[name] = sum(1 for key in source.settings if re.match(_KEYS[name], key))
        scores[name] += 3 * len(_WORDS[name] & source.words)
    best, second = sorted(scores.values(), reverse=True)[:2]
    if best > second:
        return next(name for name, score in scores.items() if score == best)
    names = ", ".join(SYSTEMS)
    if best == 0 and any(re.match(_SHARED, key) for key in source.settings):
        raise RecipeError(f"{source.name} may be TRL's or ms-swift's, which share its keys: say --from trl or ms-swift")
    if best == 0:
        ours = sum(1 for key in source.settings if lookup(key))
        if ours == len(source.settings):
            raise RecipeError(f"{source.name} is a recipe of dapo already: dapo check {source.name}")
        seen = ", ".join(list(source.settings)[:5])
        raise RecipeError(
            f"{source.name}, read as {source.form}, holds {seen}: of no known trainer; say --from, one of {names}"
        )
    tied = " and ".join(name for name, score in scores.items() if score == best)
    raise RecipeError(f"{source.name} could be from {tied}: say which with --from")


def _nothing(source: SourceFile) -> str:
    if source.unresolved:
        what, why = source.unresolved[0]
        return f"{source.name}, read as {source.form}, holds no setting that can be read; the first is {what}: {why}"
    return f"{source.name}, read as {source.form}, holds no settings at all; {APART}"
