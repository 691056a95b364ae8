"""Tokens and passwords of a recipe reach the run and nothing that is written or shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from each import each
from ruamel.yaml import YAML

from dapo.config import load_recipe
from dapo.config.resume import changed_since, load_for_resume
from dapo.config.schema import Recipe
from dapo.config.secret_text import HIDDEN
from dapo.config.secrets import redact, redact_override
from dapo.config.settings import settings
from dapo.config.shipped import recipe_names
from dapo.config.write_yaml import without_secrets
from dapo.config.yaml_files import RESOLVED
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


@each(
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
        *("WANDB_KEY", "OPENAI_KEY", "MISTRAL_KEY", "KEY", "openAIKey", "wandbKey", "API_KEYS", "apiKeys"),
        *("MY_TOKEN_1", "HF_TOKEN_READ", "HF_TOKENS", "hfToken", "HFToken", "GITHUB_PAT", "api_key_prod", "API_KEY_2"),
        *("cookie", "session_cookies", "auth", "authtoken", "clientsecret", "dbPassword", "userpassword", "jwt"),
    ],
)
def test_names_of_secrets(key: str) -> None:
    assert redact({"engine_args": {"a": [{key: TOKEN}]}}) == {"engine_args": {"a": [{key: HIDDEN}]}}
    assert TOKEN not in redact_override(f"rollout.vllm.engine_args.{key}={TOKEN}")
    assert TOKEN not in redact_override(f"rollout.vllm.engine_args={{x: 1, {key}: {TOKEN}}}")


@each(
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
        *(
            "pad_token",
            "tokens_per_step",
            "eos_token",
            "max_tokens",
            "maxTokens",
            "MAX_TOKENS",
            "num_tokens",
            "bosToken",
        ),
        *("sort_key", "prompt_key", "PRIMARY_KEY", "key", "public_key", "author", "passes", "compass", "pattern"),
        *("api_key_variable", "password_file", "auth_type", "cookie_dir", "token_level", "num_key_value_heads"),
    ],
)
def test_names_that_are_none(key: str) -> None:
    assert redact({"engine_args": {key: "value"}}) == {"engine_args": {key: "value"}}


@pytest.mark.parametrize("name", ["pad_token", "eos_token", "image_token", "mask_token", "end-token"])
def test_tokens_of_a_vocabulary_are_no_secrets(name: str) -> None:
    kept = {"engine_args": {name: "</s>"}}
    assert redact(kept) == kept


@each(
    "value",
    ["~/.ssh/id", "./gcp.json", "/home/me/gcp.json", "true", "none", "<|end|>", "</s>", ""],
)
def test_a_path_and_a_word_are_no_secret_whatever_the_key_is_called(value: str) -> None:
    kept = {"engine_args": {"credentials": value, "my_token": value, "use_auth": value}}
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
    *("gsk_" + 52 * "b", "nvapi-" + 64 * "c", "xai-" + 80 * "d", "wandb_v1_" + 77 * "e", "-----BEGIN PRIVATE KEY-----"),
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


@each(
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
        "gsk_s3cr3t" + 46 * "x",
        "nvapi-s3cr3t" + 58 * "x",
        "xai-s3cr3t" + 74 * "x",
        "wandb_v1_s3cr3t" + 71 * "x",
        "-----BEGIN RSA PRIVATE KEY-----\ns3cr3t\nx==\n-----END RSA PRIVATE KEY-----",
        "-----BEGIN OPENSSH PRIVATE KEY-----\ns3cr3t, cut",
    ],
)
def test_texts_that_hold_one(text: str) -> None:
    assert "s3cr3t" not in redact(text)
    assert HIDDEN in redact(text)


@each(
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
        *("xai-baseline-run", "nvapi-notes", "wandb_v1_runs_of_march", "gsk_8k", "-----BEGIN CERTIFICATE-----\nx"),
        *(f"models/{TOKEN_FORM}", f"see ./{TOKEN_FORM}/config.json", f"{TOKEN_FORM}.json", f"{TOKEN_FORM}_v2"),
    ],
)
def test_texts_that_hold_none(text: str) -> None:
    assert redact(text) == text


SECRET = "s3cr3t"
SHOWN_LINES = {  # what a line of shell is, and what is left of it
    "export HF_TOKEN='s3cr3t with s3cr3t'; x": "export HF_TOKEN=?; x",
    'HF_TOKEN="a s3cr3t" python x': "HF_TOKEN=? python x",
    "export HF_TOKEN=$'s3cr3t\\'s3cr3t' A=1": "export HF_TOKEN=? A=1",
    "HF_TOKEN=s3cr3t,s3cr3t A=1": "HF_TOKEN=? A=1",
    "HF_TOKEN=ab's3cr3t c'\"s3cr3t\" x": "HF_TOKEN=? x",
    "API_KEYS=(s3cr3t 's3cr3t')": "API_KEYS=?",
    "export A=${HF_TOKEN:-s3cr3t}": "export A=${HF_TOKEN:-?}",
    "wandb login s3cr3t && x": "wandb login ? && x",
    "wandb login --relogin --host https://w.org s3cr3t": "wandb login --relogin --host https://w.org ?",
    "hf auth login --token s3cr3t": "hf auth login --token ?",
    "x --api-key=s3cr3t --pad-token 0": "x --api-key=? --pad-token 0",
    "docker login -u me -p s3cr3t host": "docker login -u me -p ? host",
    "curl -u me:s3cr3t https://h": "curl -u ? https://h",
    "curl -sSu 'me:s3cr3t' https://h": "curl -sSu ? https://h",
    "curl https://h --user me:s3cr3t": "curl https://h --user ?",
    'curl -H "X-Api-Key: s3cr3t" h': 'curl -H "X-Api-Key: ?" h',
    'curl -H "Authorization: Basic s3cr3t" h': 'curl -H "Authorization: ?" h',
    """echo '{"token": "s3cr3t"}' > f""": """echo '{"token": "?"}' > f""",
    "setenv WANDB_KEY s3cr3t": "setenv WANDB_KEY ?",
    "--export=ALL,HF_TOKEN=s3cr3t": "--export=ALL,HF_TOKEN=?",
    "apptainer exec --env HF_TOKEN=s3cr3t a.sif": "apptainer exec --env HF_TOKEN=? a.sif",
    "printf '-----BEGIN PRIVATE KEY-----s3cr3t' > k": "printf '?",
}


@each("line", SHOWN_LINES)
@each("key", ["slurm.setup.0", "slurm.container", "slurm.options.export"])
def test_lines_of_shell_are_shown_without_their_secrets(line: str, key: str) -> None:
    assert redact(line, key) == SHOWN_LINES[line].replace("?", HIDDEN)
    assert SECRET not in redact_override(f"{key}={line}")


@each(
    "line",
    [
        "export HF_TOKEN=$(cat ~/.token) TOKENIZERS_PARALLELISM=0 PAD_TOKEN='</s>' MAX_TOKENS=512",
        'HF_TOKEN="$(cat "$HOME/my token")" WANDB_KEY=`cat k` A_TOKEN=$B B_TOKEN=${C:?not set} D_TOKEN=${D_TOKEN:-}',
        "export GOOGLE_APPLICATION_CREDENTIALS=/home/me/gcp.json PRIVATE_KEY=~/.ssh/id",
        *("wandb login", "wandb login && x", "wandb login $WANDB_API_KEY", "wandb login # by netrc", "ssh login -p 22"),
        *("docker run -u 1000:1000 x", "curl -u $USER:$PASS https://h", "curl -o a:b https://h/u", "sort --key=2 x"),
        'curl -H "Authorization: Bearer $HF_TOKEN" -H "Accept: text/html" https://h',
        "python x.py --tokens-per-step 100 --pad-token 7 --use-auth true --token $HF_TOKEN",
        "module load cuda/12.1; source ~/venv/bin/activate; unset HF_TOKEN; read -s HF_TOKEN; pip install auth==1",
    ],
)
def test_lines_of_shell_without_a_secret_stay_as_they_are(line: str) -> None:
    assert redact(line, "slurm.setup.0") == line


def test_a_command_hides_the_word_after_an_option() -> None:
    run = ["python", "agent.py", "--api-key", SECRET, f"--token={SECRET}", "--pad-token", "0", "--cookie", "./jar"]
    shown = ["python", "agent.py", "--api-key", HIDDEN, f"--token={HIDDEN}", "--pad-token", "0", "--cookie", "./jar"]
    assert redact({"environment": {"run": run}}) == {"environment": {"run": shown}}
    assert SECRET not in redact_override(f"environment.run=[x, --api-key, {SECRET}]")


def test_comments_of_a_recipe_hide_a_line_that_was_commented_out(tmp_path: Path) -> None:
    file = tmp_path / "r.yaml"
    file.write_text(
        TEXT + f"# hf_token: {SECRET}  (mine)\n#slurm: {{setup: [export WANDB_KEY={SECRET}]}}\n# a key: b\n"
    )
    shown = load_recipe(file).text
    assert SECRET not in shown
    assert "(mine)" in shown
    assert "# a key: b" in shown


def test_a_run_with_hidden_lines_resumes_once_they_are_given_again(tmp_path: Path) -> None:
    lines = [line for line in SHOWN_LINES if line.startswith(("export", "wandb", "curl", "hf"))]
    file = tmp_path / "r.yaml"
    file.write_text("model: {path: builtin/signed-sum}\ndata: {train: [{task: signed_sum, options: {}}]}\n")
    loaded = load_recipe(file, [f"slurm.setup={json.dumps(['module load cuda', *lines])}"])
    assert SECRET not in everything_shown(loaded)
    (tmp_path / RESOLVED).write_text(loaded.resolved)
    with pytest.raises(RecipeError, match=r"slurm\.setup\.1=VALUE"):
        load_for_resume(tmp_path)
    again, changes = load_for_resume(
        tmp_path, [f"slurm.setup.{n}={json.dumps(line)}" for n, line in enumerate(lines, 1)]
    )
    assert again.recipe == loaded.recipe
    assert not changes


def test_hostile_lines_take_time_by_their_length() -> None:
    """Each of these took a time that doubles with every few characters, or never ended, with nested repeats."""
    for hostile in ('HF_TOKEN="' + 40 * "$(a)" + "\\", "wandb login" + 40 * " -a://b", "TOKEN=" + 40 * "$(" + "x"):
        assert isinstance(redact(hostile, "slurm.setup.0"), str)
