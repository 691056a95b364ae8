"""The method of a configuration, by what names it: a recipe is made only of GRPO and its relatives."""

from __future__ import annotations

import re

from dapo.errors import RecipeError
from dapo.importing.contents import SourceFile

_DISTILLATION = (
    "distillation of another form. Here `algorithm.teacher` judges the sampled tokens (docs/distillation.md)"
)
_METHODS = {
    "sft": "supervised fine-tuning. `dapo sft` trains on given answers (docs/base_to_trained.md)",
    "pt": "pretraining",
    "dpo": "preference optimization (DPO)",
    "kto": "preference optimization (KTO)",
    "orpo": "preference optimization (ORPO)",
    "cpo": "preference optimization (CPO)",
    "simpo": "preference optimization (SimPO)",
    "ppo": "PPO with a critic",
    "rm": "a reward model",
    "rw": "a reward model",
    "reward": "a reward model",
    "rloo": "RLOO by a trainer with defaults of its own. The advantage is algorithm.advantage.baseline: leave_one_out",
    "gkd": _DISTILLATION,
    "distillation": _DISTILLATION,
    "distill": _DISTILLATION,
    "generate": "a run that trains nothing",
    "eval": "a run that trains nothing",
}
_PROGRAMS = {  # of each trainer's programs, with the method in their names
    "nemo-rl": r"run_(?:vlm_|xtoken_off_policy_)?(sft|dpo|rm|ppo|distillation|eval)",
    "skyrl": r"main_(?:on_policy_)?(sft|distill|generate)(?:_\w+)?",
    "verl": r"(?:\w+_)?(sft|eval)_?trainer|main_(eval)(?:uation)?",
    "trl": r"(sft|dpo|kto|ppo|rloo|reward|gkd|orpo|cpo)|(SFT|DPO|KTO|PPO|RLOO|Reward|GKD|ORPO|CPO)(?:Config|Trainer)",
    "ms-swift": r"(sft|pt)",
    "areal": r"\w*_(sft|dpo|rw)",
}
_NAMES = {  # keys whose value is the method
    "ms-swift": ("rlhf_type",),
    "verl": ("algorithm.adv_estimator",),
    "skyrl": ("trainer.algorithm.advantage_estimator",),
    "areal": ("train_dataset.type",),
}
_IMAGE_NAMES = re.compile(
    r"geo(metry)?_?3k|clevr|mmpr|refcoco|avqa|audiomcq|intent-|\bvlms?\b|[-_/\d]vl[-_/\d]|[-_]vl$|vision|llava|internvl|"
    r"[-_\d]omni|glm-?4\.[15]v|minicpm-?[vo]|virl39k|multimodal",
    re.IGNORECASE,
)
_OF_DATA = re.compile(
    r"(.*\.)?(dataset|dataset_name|train_files|train_data|path|model|model_name|model_name_or_path|env_name)"
)


def refuse_other_methods(source: SourceFile, system: str) -> None:
    """Raise where the source trains by another method, or on images.

    Raises:
        RecipeError: the message says what names the method.
    """
    method, by = _method(source, system)
    if method:
        raise RecipeError(
            f"{source.name} is a configuration of {_METHODS.get(method, method)} ({by}). `dapo import` converts GRPO "
            "and its relatives, in which several responses to a prompt are compared"
        )
    if by := _images(source):
        raise RecipeError(f"{source.name} trains on images or sounds ({by}). Models read text here")


def _method(source: SourceFile, system: str) -> tuple[str, str]:
    """Return the method and what names it; empty: it may be GRPO."""
    for key in _NAMES.get(system, ()):
        value = str(source.settings[key].value).lower() if key in source.settings else ""
        value = {"gae": "ppo"}.get(value, value)
        if value in _METHODS and value != "rloo":  # an advantage that is here, unless a trainer has it as a program
            return value, f"{key} = {source.settings[key].value}"
    tops = {key.partition(".")[0] for key in (*source.settings, *source.unread)}
    if system == "nemo-rl" and "grpo" not in tops:
        of_bases = (
            re.search(r"defaults: .*?(sft|dpo|rm|ppo|distillation)\w*\.yaml", what) for what, _ in source.unresolved
        )
        base = next((found for found in of_bases if found), None)
        if named := next((name for name in ("sft", "dpo", "rm", "ppo", "distillation") if name in tops), None):
            return named, f"the section `{named}`"
        if base is not None:
            return base[1], base[0]
    if system == "areal" and {"critic", "actor", "train_dataset"} <= tops:
        return "ppo", "the section `critic`"
    if system == "areal" and {"actor", "train_dataset"} <= tops and not tops & {"gconfig", "rollout"}:
        return "training without generation", "there is no section `gconfig`"
    if system == "ms-swift" and source.words & {"rlhf", "grpo"}:
        return "", ""
    if system == "trl" and source.words & {"grpo", "GRPOConfig", "GRPOTrainer"}:
        return "", ""
    for word in sorted(source.words):
        if found := re.fullmatch(_PROGRAMS[system], word.removesuffix(".py")):
            return next(group for group in found.groups() if group).lower(), f"the program {word}"
    return "", ""


def _images(source: SourceFile) -> str:
    """Return what says that images are read; empty: nothing does."""
    for key, given in source.settings.items():
        shown = f"{key} = {str(given.value)[:100]}"
        if _OF_DATA.fullmatch(key) and _IMAGE_NAMES.search(str(given.value)):
            return shown
    named = (
        f"the name {word}" for word in (source.name, *sorted(source.words)) if re.search(r"(^|[_-])vlm([_.-]|$)", word)
    )
    return next(named, "")
