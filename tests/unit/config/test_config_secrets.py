"""Tokens and passwords of a recipe reach the run and nothing that is written or shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from dapo.config import load_recipe
from dapo.config.files import RESOLVED
from dapo.config.resume import changed_since, load_for_resume
from dapo.config.schema import Recipe
from dapo.config.secrets import HIDDEN, redact, redact_override
from dapo.config.settings import settings
from dapo.config.shipped import recipe_names
from dapo.config.write import without_secrets
from dapo.errors import RecipeError

TOKEN, PASSWORD = "s3cr3t-of-mine", "pa55word-x"
TOKEN_FORM = "hf_" + 34 * "a"  # as long as a real one
TEXT = f"""
model: {{path: builtin/signed-sum}}
data:
  train: [{{task: signed_sum, options: {{}}}}]
rollout:
  engine: vllm
  vllm:
    engine_args: {{max_num_batched_tokens: 8192, hf_token: "{TOKEN}", tokenizer: some/name}}  # {TOKEN}
run: {{dir: "http://user:{PASSWORD}@host:8000/x"}}
"""


def everything_shown(loaded: Any) -> str:
    shown = [loaded.text, loaded.resolved, repr(loaded.difference), " ".join(loaded.overrides), repr(loaded.warnings)]
    return "\n".join(shown)


def test_a_run_gets_the_secret_and_no_file_does(tmp_path: Path) -> None:
    file = tmp_path / "r.yaml"
    file.write_text(TEXT)
    loaded = load_recipe(file, [f"rollout.vllm.engine_args.download_config.password={PASSWORD}"])
    arguments = loaded.recipe.rollout.vllm.engine_args
    assert arguments["hf_token"] == TOKEN
    assert arguments["download_config"] == {"password": PASSWORD}
    assert PASSWORD in loaded.recipe.run.dir
    shown = everything_shown(loaded)
    assert TOKEN not in shown
    assert PASSWORD not in shown
    assert "8192" in loaded.text
    assert "some/name" in loaded.resolved
    assert "# " in loaded.text
    assert loaded.text.count(HIDDEN) == 3
    assert f"http://{HIDDEN}@host:8000/x" in loaded.resolved


def test_a_refusal_does_not_quote_it(tmp_path: Path) -> None:
    file = tmp_path / "r.yaml"
    file.write_text(TEXT)
    for override in (
        f"rollout.server.url=http://me:{PASSWORD}@host:1/v1/x",
        f"rollout.vllm.engine_args.api_key=[{PASSWORD}",
        f"rollout.vllm.engine_args={{token: {PASSWORD}, a: [}}",
        f"rollout.vllm.nowhere={{hf_token: {PASSWORD}}}",
        f"run.seed=hf_{PASSWORD.replace('-', '')}{'a' * 25}",
    ):
        with pytest.raises(RecipeError) as caught:
            load_recipe(file, [override])
        assert PASSWORD not in str(caught.value)
        assert "pa55wordx" not in str(caught.value)


def test_a_resume_says_what_has_to_be_given_again(tmp_path: Path) -> None:
    file = tmp_path / "r.yaml"
    file.write_text(TEXT.replace(f"http://user:{PASSWORD}@host:8000/x", "runs"))
    (tmp_path / RESOLVED).write_text(load_recipe(file).resolved)
    key = "rollout.vllm.engine_args.hf_token"
    with pytest.raises(RecipeError, match=f"{key}=VALUE"):
        load_for_resume(tmp_path)
    loaded, changes = load_for_resume(tmp_path, [f"{key}={TOKEN}"])
    assert loaded.recipe.rollout.vllm.engine_args["hf_token"] == TOKEN
    assert not changes
    assert TOKEN not in everything_shown(loaded)
    assert load_recipe(tmp_path / RESOLVED, of_a_run=True).recipe.run.dir == "runs"  # readers need no secret


@pytest.mark.parametrize(
    "key",
    [
        "token",
        "hf_token",
        "hf-token",
        "api_key",
        "apiKey",
        "API_KEY",
        "password",
        "db.passwd",
        "client_secret",
        "aws_secret_access_key",
        "credentials",
        "Authorization",
        "bearer_token",
        "private_key",
    ],
)
def test_names_of_secrets(key: str) -> None:
    assert redact({"engine_args": {"a": [{key: TOKEN}]}}) == {"engine_args": {"a": [{key: HIDDEN}]}}
    assert TOKEN not in redact_override(f"rollout.vllm.engine_args.{key}={TOKEN}")
    assert TOKEN not in redact_override(f"rollout.vllm.engine_args={{x: 1, {key}: {TOKEN}}}")


@pytest.mark.parametrize(
    "key",
    [
        "max_num_batched_tokens",
        "tokenizer",
        "tokenizer_mode",
        "stop_token_ids",
        "monkey",
        "keyboard",
        "tokens",
        "secretary",
        "seed",
    ],
)
def test_names_that_are_none(key: str) -> None:
    assert redact({"engine_args": {key: "value"}}) == {"engine_args": {key: "value"}}


@pytest.mark.parametrize("name", ["pad_token", "eos_token", "image_token", "mask_token", "end-token"])
def test_tokens_of_a_vocabulary_are_no_secrets(name: str) -> None:
    kept = {"engine_args": {name: "</s>"}}
    assert redact(kept) == kept


def test_all_below_a_secret_name_and_a_password_of_digits_are_hidden() -> None:
    given = {"engine_args": {"credentials": {"user": TOKEN, "ids": [TOKEN]}, "password": 123456, "token": 7}}
    hidden = {"credentials": {"user": HIDDEN, "ids": [HIDDEN]}, "password": HIDDEN, "token": 7}
    assert redact(given) == {"engine_args": hidden}
    assert redact({"environment": {"args": {"fields": {"token": TOKEN}}}})["environment"]["args"]["fields"] == {
        "token": HIDDEN
    }


def test_the_text_of_a_recipe_hides_an_anchor_whose_alias_is_secret(tmp_path: Path) -> None:
    file = tmp_path / "r.yaml"
    file.write_text(
        TEXT.replace(f'"{TOKEN}"', "*a").replace(f"# {TOKEN}", "").replace("{path:", f"{{revision: &a {TOKEN}, path:")
    )
    assert TOKEN not in without_secrets(file.read_text(), YAML(typ="safe", pure=True).load(file.read_text()))


FOLDERS = [
    *(TOKEN_FORM, f"./{TOKEN_FORM}", f"{TOKEN_FORM}.v1", "./hf_tiny_llama_checkpoint_v1", "hf_" + 34 * "A" + "/model"),
    *("ghp_" + 36 * "b", "AKIA" + 16 * "C", "sk-" + 48 * "d", "glpat-" + 20 * "e", "AIza" + 35 * "f"),
    *("eyJhbGciOiJI.eyJzdWIiOiIx.c2ln", "./Bearer of-good-news", "Bearer abcdefghijkl", "token=abcdefgh", "./password"),
    *("./a://user:pass@b", "user:pass@host", HIDDEN, "api_key", "HF_TOKEN=x", "a b", "[v1]", "{x: 1}", "1e5", "no"),
]


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("key", ["model.path", "data.train.0.path", "run.dir", "checkpoint.dir"])
def test_a_path_is_never_a_secret(key: str, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a folder is called, the run that names it is resumed, and its checkpoints name it."""
    monkeypatch.chdir(tmp_path)
    Path(folder).mkdir(parents=True)
    Path("own.jsonl").write_text('{"problem": "1", "answer": "1"}\n')
    data = folder if key == "data.train.0.path" else "own.jsonl"
    Path("r.yaml").write_text(
        f"model: {{path: builtin/signed-sum}}  # {TOKEN_FORM}\ndata: {{train: [{{path: '{data}', name: x}}]}}\n"
    )
    loaded = load_recipe("r.yaml", [f"{key}={folder}"] if key != "data.train.0.path" else [])
    assert TOKEN_FORM not in loaded.text.partition("#")[2].partition("\n")[0]
    assert data in loaded.text
    Path("run").mkdir()
    Path("run", RESOLVED).write_text(loaded.resolved)
    again, changes = load_for_resume("run")
    assert again.recipe == loaded.recipe
    assert not changes
    of_a_checkpoint = redact(loaded.recipe.model_dump(mode="json"))
    assert changed_since(of_a_checkpoint, again.recipe) == []
    assert Recipe.model_validate(of_a_checkpoint) == loaded.recipe


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_of_the_package_survives_redaction(name: str, tmp_path: Path) -> None:
    loaded = load_recipe(name, ["data.train.0.path=hub:a/b"] if name == "own_data" else [])
    (tmp_path / RESOLVED).write_text(loaded.resolved)
    again, changes = load_for_resume(tmp_path)
    assert again.recipe == loaded.recipe
    assert not changes
    assert Recipe.model_validate(redact(loaded.recipe.model_dump(mode="json"))) == loaded.recipe


def test_settings_of_ours_are_never_hidden_by_their_name() -> None:
    kept = {"rollout": {"server": {"api_key_variable": "MY_TOKEN"}}, "data": {"fields": {"token": "question"}}}
    assert redact(kept) == kept
    assert not [path for path in settings() if redact("text", path) != "text"]


@pytest.mark.parametrize(
    "text",
    [
        "http://user:s3cr3t-x@host:80",
        "https://s3cr3t-x@host/path",
        "see redis://:s3cr3t-x@h:1 there",
        "hf_s3cr3t" + 28 * "x",
        "export A=${A:-hf_s3cr3t" + 28 * "x" + "}",
        "Bearer s3cr3t-xxxxxxxx",
        "https://a:s3cr3t-x@b@host",
        "http://h/v1?api_key=s3cr3t-x",
        "http://h/v1?a=b&API-KEY=s3cr3t-x#c",
        "Cannot connect to http://h/v1?access_token=s3cr3t-x&b=1: refused",
        "https://b/x?X-Amz-Signature=s3cr3t-x",
        "https://b/x?sv=1&sig=s3cr3t%2Bx",
        "https://h?key=s3cr3t-x",
    ],
)
def test_texts_that_hold_one(text: str) -> None:
    assert "s3cr3t" not in redact(text)
    assert HIDDEN in redact(text)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "https://h/v1?api-version=2&page=3",
            "what is x?key=",
            "https://h?max_tokens=5",
            "http://host:8000",
            "me@host.org",
            "https://host/a@b",
            "hub:a/b",
            "hf_model",
            "1 @ 2",
        ),
        *("hf_tiny_llama_checkpoint_v1", "policy.hf_config_overrides", "sk-learn-baseline-of-the-paper", "ghp_runs"),
        *(f"models/{TOKEN_FORM}", f"see ./{TOKEN_FORM}/config.json", f"{TOKEN_FORM}.json", f"{TOKEN_FORM}_v2"),
    ],
)
def test_texts_that_hold_none(text: str) -> None:
    assert redact(text) == text
