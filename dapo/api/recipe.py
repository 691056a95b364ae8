"""From what a program gives to a checked recipe: paths, dictionaries, keywords, functions, data."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from dapo.algorithms.objective import Objective
from dapo.api.data import sources
from dapo.api.objects import FOLDER, saved_model
from dapo.config.load import LoadedRecipe, apply_settings, load_recipe, recipe_from_dict
from dapo.config.peer_names import peer_hint
from dapo.config.schema import Recipe
from dapo.config.shipped import find_recipe
from dapo.config.yaml_files import parse_yaml, read_recipe_file
from dapo.errors import RecipeError
from dapo.hooks import give, is_object

if TYPE_CHECKING:
    from dapo.api.sections import RewardSettings

RecipeLike = str | Path | Mapping[str, Any] | Recipe | LoadedRecipe
"""A recipe: its file or short name, a nested dictionary, or one that was loaded."""
RewardLike: TypeAlias = "str | RewardSettings | Callable[..., Any]"
"""A reward: a function f(prompt, completion), a kind (``math``), or the keys of a reward."""
SECTIONS = {name for name in Recipe.model_fields if name != "preset"}


@dataclass(frozen=True, slots=True)
class Asked:
    """Arguments of a program's call."""

    loaded: LoadedRecipe
    objects: dict[str, str]  # of the recipe's settings: those that are objects of this program, by their names


def ask(
    recipe: RecipeLike | None,
    *,
    rewards: Sequence[RewardLike] | RewardLike | None = None,
    train: Any = None,
    validation: Any = None,
    objective: Any = None,
    environment: Any = None,
    tools: Sequence[Any] = (),
    tokenizer: Any = None,
    settings: Mapping[str, Any] | None = None,
    sft: bool = False,
) -> Asked:
    """Return the recipe with all settings applied.

    Args:
        recipe: see ``RecipeLike``; None: settings alone.
        rewards: in place of the recipe's; the first function among them is the accuracy unless one is called so.
        train: data to train on, see ``dapo.api.data.sources``.
        validation: held-out data.
        objective: a loss of the caller's: a function, or an ``Objective``.
        environment: who answers the model: a generator function, a class, or keys of the section.
        tools: typed functions that the model may call.
        tokenizer: of a loaded model, which ``settings`` hold as ``model``.
        settings: sections (``trainer={"steps": 20}``) and dotted keys (``{"trainer.steps": 20}``).
        sft: for a supervised run; ``train`` and ``validation`` are those of the section ``sft``.

    Raises:
        RecipeError: whatever is wrong with the recipe, or nothing of what is expected was given.
        DataError: the data given are none.
    """
    settings = dict(settings or {})
    section = "sft" if sft else "data"
    keys = {"rewards": "rewards", "train": f"{section}.train", "validation": f"{section}.validation"}
    arguments = {"rewards": rewards, "train": train, "validation": validation, "objective": objective}
    _refuse_twice(settings, {keys.get(n, "algorithm.loss.kind"): n for n, v in arguments.items() if v is not None})
    if objective is not None:
        settings["algorithm.loss.kind"] = objective
    settings |= _environment_settings(environment, tools)
    if recipe is None and not settings and train is None:
        raise RecipeError("a recipe is missing: give a file, a short name such as 'quickstart', a dict, or settings")
    plain = not settings and rewards is None and train is None and validation is None
    if isinstance(recipe, LoadedRecipe) and plain and not sft:
        return Asked(recipe, _objects(recipe.recipe))
    if isinstance(recipe, str | Path) and plain:
        loaded = load_recipe(recipe, sft=sft)
        return Asked(loaded, _objects(loaded.recipe))
    given, path = _settings_of(recipe)
    beneath = given
    model = _taken_model(settings)
    _check_names(settings)
    laid = {key: _hooked(value, key) for key, value in settings.items()}
    given = apply_settings(given, laid, filled_in=isinstance(recipe, Recipe | LoadedRecipe))
    if rewards is not None:
        given["rewards"] = reward_sections(rewards)
    folder = Path(str((given.get("run") or {}).get("dir", "runs")))
    notes: list[str] = []
    if model is not None:
        given["model"], notes = _model_section(given.get("model"), model, tokenizer, folder)
    elif tokenizer is not None:
        raise RecipeError(
            "tokenizer=... belongs to a loaded model, given as model=...: a model that is named has its own tokenizer; "
            "another chat template is data.chat_template"
        )
    data = dict(given.get(section) or {})
    if train is not None:
        data["train"] = sources(train, "train", folder)
    if validation is not None:
        data["validation"] = sources(validation, "held_out", folder)
    if data:
        given[section] = data
    loaded = recipe_from_dict(given, path=path, sft=sft, beneath=beneath)
    return Asked(replace(loaded, warnings=(*loaded.warnings, *notes)), _objects(loaded.recipe))


def _refuse_twice(settings: Mapping[str, Any], arguments: Mapping[str, str]) -> None:
    """Refuse a setting that one call gives twice with different values, since one of them would be dropped.

    Args:
        settings: sections and dotted keys.
        arguments: the keyword arguments that were given, by the key that each sets.
    """
    seen: dict[str, Any] = {}
    for name, value in settings.items():
        flat: dict[str, Any] = {}
        _flatten(name, value, flat)
        for key, one in flat.items():
            if key in seen and seen[key] is not one and seen[key] != one:
                raise RecipeError(f"{key} is given twice, as {seen[key]!r} and as {one!r}: give it once")
            for above, argument in arguments.items():
                if f"{key}.".startswith(f"{above}."):
                    raise RecipeError(f"{argument}=... sets {above}, and {key} is given too: put all of it in one")
        seen |= flat


def _taken_model(settings: dict[str, Any]) -> Any:
    """Take a loaded model out of settings and return it; None if they name one, whose key is then ``model.path``."""
    section = settings.get("model")
    if section is not None and not isinstance(section, Mapping):
        settings["model.path"] = settings.pop("model")
    elif section is not None and "path" in section:
        settings["model"] = {key: value for key, value in section.items() if key != "path"}
        settings.setdefault("model.path", section["path"])
    path = settings.get("model.path")
    return None if path is None or isinstance(path, str | Path) else settings.pop("model.path")


def _model_section(section: Any, model: Any, tokenizer: Any, folder: Path) -> tuple[dict[str, Any], list[str]]:
    """Return the section ``model`` with the folder of a loaded model, which is saved first, and what to say of it.

    Args:
        section: as it is without the model.
        model: the model.
        tokenizer: its tokenizer.
        folder: of the runs.
    """
    own = dict(section) if isinstance(section, Mapping) else {}
    saved = saved_model(model, tokenizer, folder / FOLDER, trust_remote_code=own.get("trust_remote_code") is True)
    filled = {"dtype": saved.dtype, **own, "path": str(saved.path)}
    if filled["dtype"] == saved.dtype:
        return filled, saved.notes
    note = f"the loaded model is {saved.dtype}, and model.dtype of the recipe is {filled['dtype']}, in which it trains"
    return filled, [note, *saved.notes]


def _environment_settings(environment: Any, tools: Sequence[Any]) -> dict[str, Any]:
    """Return the settings of an environment and tools that were given as objects."""
    if isinstance(environment, Mapping):
        settings = {f"environment.{key}": value for key, value in environment.items()}
    else:
        settings = {} if environment is None else {"environment.kind": environment}
    if tools:
        settings["environment.tools"] = list(tools)
        if environment is None:
            settings["environment.kind"] = "tools"
    return settings


def overrides_of(settings: Mapping[str, Any]) -> list[str]:
    """Return settings in the command line's form, which is all that a resume takes.

    Raises:
        RecipeError: these are no settings, or one has a value that no setting can hold.
    """
    if not isinstance(settings, Mapping) or not all(isinstance(key, str) for key in settings):
        what = "a dict with other keys" if isinstance(settings, Mapping) else repr(settings)[:80]
        raise RecipeError(
            f"found {what}, expected a dict of settings by their keys, such as {{'learner.learning_rate': 1e-6}}"
        )
    _check_names(settings)
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        _flatten(key, _hooked(value, key), flat)
    try:
        return [f"{key}={json.dumps(value)}" for key, value in flat.items()]
    except (TypeError, ValueError) as error:
        raise RecipeError(f"a setting holds something that no recipe can hold: {error}") from None


def hooks_of(recipe: Recipe) -> dict[str, str]:
    """Every setting that names a function: its key, and the name."""
    a = recipe.algorithm
    found = {f"rewards.{n}.function": reward.function for n, reward in enumerate(recipe.rewards)}
    found |= {
        "algorithm.loss.kind": a.loss.kind,
        "algorithm.advantage.kind": a.advantage.kind,
        "algorithm.shaping": a.shaping,
        "algorithm.dynamic_sampling.keep": a.dynamic_sampling.keep,
        "environment.kind": recipe.environment.kind,
        "environment.tool_format": recipe.environment.tool_format,
        "data.stream": recipe.data.stream,
        "scorer": recipe.scorer,
    }
    found |= {f"environment.tools.{n}": tool for n, tool in enumerate(recipe.environment.tools)}
    return {key: hook for key, hook in found.items() if hook is not None and ":" in hook}


def _objects(recipe: Recipe) -> dict[str, str]:
    return {key: hook for key, hook in hooks_of(recipe).items() if is_object(hook)}


def _settings_of(recipe: RecipeLike | None) -> tuple[dict[str, Any], Path | None]:
    """Return settings as a nested dictionary, and the file that held them."""
    if recipe is None:
        return {}, None
    if isinstance(recipe, str | Path):
        path = find_recipe(recipe)
        return parse_yaml(read_recipe_file(path), str(recipe))[0], path
    if isinstance(recipe, LoadedRecipe):
        return recipe.recipe.model_dump(mode="json"), None
    if isinstance(recipe, Recipe):
        return recipe.model_dump(mode="json"), None
    if isinstance(recipe, Mapping):
        return _hooked(dict(recipe), ""), None
    what = "a function" if callable(recipe) else type(recipe).__name__
    hint = "; a reward is given as rewards=[f]" if callable(recipe) else ""
    hint = hint or ("; data are given as train=..." if isinstance(recipe, Sequence) else "")
    raise RecipeError(
        f"expected a recipe (a path, a short name such as 'quickstart', a dict, or a loaded one), found {what}{hint}"
    )


def _check_names(settings: Mapping[str, Any]) -> None:
    for key in settings:
        if "." not in key and key not in SECTIONS | {"preset"}:
            near = get_close_matches(key, SECTIONS, 1)
            hint = f" ({peer})" if (peer := peer_hint(key)) else f" (did you mean {near[0]}?)" if near else ""
            raise RecipeError(
                f"{key!r} is no argument and no section of a recipe{hint}; settings are given by section "
                f"(trainer={{'steps': 20}}) or by their key (**{{'trainer.steps': 20}}). Sections: "
                f"{', '.join(sorted(SECTIONS))}"
            )


def reward_sections(given: Sequence[RewardLike] | RewardLike) -> list[dict[str, Any]]:
    """Return the recipe's list of rewards for a program's rewards.

    Raises:
        RecipeError: something in it is no reward.
    """
    items = [given] if callable(given) or isinstance(given, str | Mapping) else list(given)
    named = any(isinstance(item, Mapping) and item.get("name", "accuracy") == "accuracy" for item in items)
    named = named or any(getattr(item, "__name__", "") == "accuracy" for item in items)
    rewards = []
    for item in items:
        if isinstance(item, Mapping):
            rewards.append(_hooked(dict(item), "rewards"))
        elif isinstance(item, str) and ":" not in item:
            rewards.append({"name": item if named else "accuracy", "kind": item})
            named = True
        elif isinstance(item, str) or callable(item):
            name = item.partition(":")[2] if isinstance(item, str) else _name(item)
            hook = item if isinstance(item, str) else _hook(item)
            rewards.append({"name": name if named else "accuracy", "kind": "function", "function": hook})
            named = True
        else:
            raise RecipeError(f"a reward is a function, a kind or a dict of its keys, found {type(item).__name__}")
    return rewards


def _hooked(value: Any, key: str) -> Any:
    """Functions and objectives anywhere in settings become the names by which a recipe can hold them."""
    if isinstance(value, Recipe):
        return value.model_dump(mode="json")
    if isinstance(value, Mapping):
        return {name: _hooked(below, f"{key}.{name}") for name, below in value.items()}
    if isinstance(value, list | tuple):
        return [_hooked(below, f"{key}.{n}") for n, below in enumerate(value)]
    if isinstance(value, Path):
        return str(value)
    if key.lstrip(".") in ("model", "model.path") and hasattr(value, "parameters"):
        raise RecipeError(
            f"{key.lstrip('.')}: a loaded model starts a run, as train(model=..., tokenizer=...), and has no place here"
        )
    if callable(value) or isinstance(value, Objective):
        return _hook(value)
    return value


def _hook(found: Any) -> str:
    """Return ``module:name`` if that names the object, which a resume then finds itself; else ``python:NAME``."""
    module, name = getattr(found, "__module__", None), getattr(found, "__qualname__", "")
    here = sys.modules.get(str(module))
    if module not in (None, "__main__") and here is not None and getattr(here, name, None) is found:
        return f"{module}:{name}"
    return give(found, _name(found))


def _name(found: Any) -> str:
    name = str(getattr(found, "__name__", None) or type(found).__name__)
    return "function" if name == "<lambda>" else name


def _flatten(key: str, value: Any, out: dict[str, Any]) -> None:
    if isinstance(value, Mapping) and value:
        for name, below in value.items():
            _flatten(f"{key}.{name}", below, out)
    else:
        out[key] = value
