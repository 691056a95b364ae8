"""Values that no setting can hold: each is refused in a message, whichever setting it is given for."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path
from typing import Any

import pytest
from each import each

from dapo.config import load_recipe, recipe_from_dict
from dapo.config.settings import settings
from dapo.errors import RecipeError

SMALL: dict[str, Any] = {"model": {"path": "builtin/signed-sum"}, "data": {"train": [{"task": "signed_sum"}]}}
BOMB = "{a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1], b: &b [*a, *a, *a, *a, *a, *a, *a, *a, *a], " + ", ".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]" for old, new in zip("bcdefgh", "cdefghi", strict=True)
)


def refusal(*overrides: str) -> str:
    with pytest.raises(RecipeError) as caught:
        recipe_from_dict(SMALL, overrides)
    message = str(caught.value)
    message.encode()  # it can be printed
    assert all(c.isprintable() or c == "\n" for c in message)
    assert len(message) < 2000
    return message


@each(
    ("value", "said"),
    [
        ("9" * 5000, "digits"),
        ("9" * 30, "9,223,372,036,854,775,807"),
        ("&a {x: *a}", "aliases"),
        (BOMB + "}", "aliases"),
        ("[" * 3000, "too deep"),
        ("[" * 60 + "]" * 60, "deep"),
        ("!!set {0.9, 0.95}", "a set"),
        ("!!binary aGk=", "binary data"),
        ("2026-11-22", "a date"),
        ("2026-02-30", "day is out of range"),
        ("{1: 2}", "names as keys, found int"),
        ('"a\\0b"', "NUL"),
        ('"\\ud800"', "lone surrogate"),
        ("1e999", "finite"),
        ("!!python/object:os.system x", "not valid YAML"),
    ],
)
@each("key", ["learner.betas", "rollout.vllm.engine_args.x", "run", "nowhere.at.all"])
def test_a_value_of_no_setting_is_refused(key: str, value: str, said: str) -> None:
    assert said in refusal(f"{key}={value}")


@each("key", ["run.name", "data.instruction", "model.path", "rewards.0.pattern"])
@each(("value", "said"), [("\udcff", "lone surrogate"), ("a\0b", "NUL")])
def test_text_that_cannot_be_written_is_refused(key: str, value: str, said: str) -> None:
    assert said in refusal(f"{key}={value}")
    section, name = key.rsplit(".", 1)
    with pytest.raises(RecipeError, match=said):
        recipe_from_dict({**SMALL, section: {name: value}})


@each(
    ("name", "said"),
    [
        ("x" * 300, "300 bytes"),
        ("é" * 120, "240 bytes"),
        ("h\x1b]0;run\x07", "cannot be seen"),
        ("a\u202eb", "cannot be seen"),
        (".models", "dot"),
        ("--resume", "dash"),
    ],
)
def test_names_that_are_no_good_folder_are_refused(name: str, said: str) -> None:
    assert said in refusal(f"run.name={name}")


def test_names_of_people_are_taken() -> None:
    for name in ("größe 2", "日本", "a.b-c_d", "x" * 200, "off"):
        assert recipe_from_dict(SMALL, [f"run.name={name}"]).recipe.run.name == name


LARGE = [
    "run.threads",
    "run.reward_workers",
    "data.train.0.size",
    "rollout.prompts_per_step",
    "rollout.group_size",
    "rollout.slots",
    "rollout.max_response_tokens",
    "data.max_prompt_tokens",
    "rewards.0.timeout",
    "rewards.0.weight",
    "validation.samples",
    "rollout.server.patience",
    "rollout.vllm.tensor_parallel_size",
    "algorithm.dynamic_sampling.oversample",
    "algorithm.dynamic_sampling.lookahead",
    "algorithm.dynamic_sampling.cap.groups",
    "rollout.temperature",
]


@each("key", LARGE)
def test_numbers_that_cannot_be_meant_are_refused_and_the_bound_is_taken(key: str) -> None:
    whole = "whole" in next(s.expected for s in settings().values() if s.path == key.replace(".0.", ".N."))
    message = refusal(f"{key}={'100000000000' if whole else '1.0e+11'}")
    bound = re.findall(r"(?:to|at most) ([\d,.]*\d)", message)[-1].replace(",", "")
    others = ["rollout.group_size=2", "rollout.prompts_per_step=1", "algorithm.dynamic_sampling.cap.groups=null"]
    others.append("algorithm.reward_scaling.enabled=false")
    recipe_from_dict(SMALL, [*(o for o in others if not o.startswith(key)), f"{key}={bound}"])
    assert math.isfinite(float(bound))


def test_responses_of_a_step_are_bounded_together() -> None:
    assert "more than the 4,194,304" in refusal("rollout.group_size=65536", "rollout.prompts_per_step=65")


@pytest.mark.parametrize(("ids", "said"), [("[-5]", "begin at 0"), ("[1, -1]", "number 1"), ("[]", "is empty")])
def test_stop_tokens_that_are_none_are_refused(ids: str, said: str) -> None:
    assert said in refusal(f"rollout.stop_token_ids={ids}")


@each("path", ["x" * 300, "/" + "y/" * 3000, "~nobody_of_that_name/x", "/proc/1/root/x"])
@each("key", ["data.train.0.path", "model.path"])
def test_paths_that_cannot_be_looked_up_are_refused_or_left_to_the_hub(key: str, path: str) -> None:
    source = {"path": "file.jsonl"} if key.startswith("data") else {"task": "signed_sum"}
    given = {"model": {"path": "m"}, "data": {"train": [source]}}
    if key == "model.path" and path.count("/") <= 1 and path.isprintable() and path[0] != "~":
        assert recipe_from_dict(given, [f"{key}={path}"]).recipe.model.path == path  # a hub's name
    else:
        with pytest.raises(RecipeError, match=key):
            recipe_from_dict(given, [f"{key}={path}"])


@each(
    ("key", "said"),
    [
        ("", "expected key=value"),
        (".", "here may stand"),
        ("a..b", "no such key; in a recipe may stand: preset, run, model"),
        ("model.path.y", "no such key: `model.path` is a setting, and has no keys of its own"),
        ("rewards.0.nothing", "no such key; here may stand: name, kind"),
        ("run.nothing.like.it", "no such key; in `run` may stand: dir, name"),
        ("rewards.²", "expected a number from 0 to 1"),
        ("rewards." + "9" * 5000, "expected a number from 0 to 1"),
        ("x" * 5000, "here may stand"),
        ("a." * 3000 + "b", "more than 32 sections deep"),
        ("run.name.y", "expected text"),
        ("\udcff", "not valid Unicode"),
    ],
)
def test_keys_that_are_none_are_refused(key: str, said: str) -> None:
    assert said in refusal(f"{key}=1")


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("model.path.x={[1]: 2}", "model.path.x: {(1,): 2}"),
        ("rewards.²={[1]: 2}", "rewards.²: {(1,): 2}"),
        ("rewards.0.name=" + "a/" * 9000, "no reward of that name; there are `a/a/"),
    ],
)
def test_whatever_was_given_can_be_quoted(override: str, said: str) -> None:
    assert said in refusal(override)


def test_a_mapping_for_a_number_is_refused() -> None:
    given = {**SMALL, "data": {"train": [{"task": "signed_sum", "size": 8}]}}
    with pytest.raises(RecipeError, match="expected a whole number"):
        recipe_from_dict(given, ["data.train.0.size={a: 2}"])


@pytest.mark.parametrize("pattern", ["(a{99999999999})", "(" * 3000 + ")" * 3000, "("])
def test_patterns_that_cannot_be_compiled_are_refused(pattern: str) -> None:
    assert "regular expression" in refusal("rewards.0.kind=regex", f"rewards.0.pattern={pattern}")


def test_a_recipe_is_a_file(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.yaml"
    os.mkfifo(pipe)
    for path in ("/dev/zero", "/dev/null", pipe):
        with pytest.raises(RecipeError, match="no regular file"):
            load_recipe(path)
    (tmp_path / "huge.yaml").write_bytes(b"#" * 1_000_001)
    with pytest.raises(RecipeError, match="1,000,000 bytes"):
        load_recipe(tmp_path / "huge.yaml")
    with pytest.raises(RecipeError, match="cannot be read"):
        load_recipe("x" * 300)


def test_a_recipe_may_come_through_a_pipe_of_the_shell() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"model: {path: builtin/signed-sum}\ndata: {train: [{task: signed_sum}]}\n")
    os.close(writing)
    try:
        assert load_recipe(f"/dev/fd/{reading}").recipe.model.path == "builtin/signed-sum"
    finally:
        os.close(reading)


def test_settings_of_python_that_yaml_has_no_word_for_are_refused() -> None:
    with pytest.raises(RecipeError, match="found PosixPath"):
        recipe_from_dict({**SMALL, "run": {"dir": Path("runs")}})
    assert recipe_from_dict({**SMALL, "learner": {"betas": (0.9, 0.95)}}).recipe.learner.betas == (0.9, 0.95)
