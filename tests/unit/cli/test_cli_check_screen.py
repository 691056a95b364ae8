"""The screen of ``dapo check``: its verdict first, what it did not look at, and no traceback for odd model folders."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from documented_json import documented_keys

from dapo.cli.main import main
from dapo.models.tiny import make_tiny_model

NOT_HERE = 3
SMALL = ("rollout.prompts_per_step=4", "rollout.group_size=2", "learner.minibatch_prompts=2", "rewards.0.kind=math")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    make_tiny_model(tmp_path / "model", hidden=16, layers=2, heads=2, ffn=32)
    rows = [{"problem": f"{n} +1 =", "answer": str(n + 1)} for n in range(1, 8)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "mine.yaml").write_text(
        "model: {path: ./model}\ndata: {train: [{path: train.jsonl}], validation: [{task: signed_sum, size: 40}]}\n"
        "rewards: [{kind: exact, pattern: '=(\\d+)$'}]\nrollout: {max_response_tokens: 32}\n"
        "trainer: {steps: 10}\nlearner: {warmup: 1}\n"
    )
    return tmp_path


def check(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["check", "mine.yaml", *arguments])
    found = capsys.readouterr()
    return code, found.out, found.err


def test_a_folder_without_weights_is_enough_for_memory_tokens_and_data(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, with_weights, _ = check(capsys)
    (folder / "model/model.safetensors").unlink()
    code, told, _ = check(capsys)
    assert (whole, code) == (0, NOT_HERE)
    first, here, memory, left_out, *rest = told.splitlines()
    assert first == (
        "mine.yaml: this machine cannot run it. Elsewhere, or after the next move below: dapo train mine.yaml"
    )
    assert memory.startswith("  here: about ")
    missing = "has no *.safetensors file; expected model.safetensors or its shards"
    assert here == f"  not here: model.path '{folder}/model' {missing}"
    assert left_out.startswith("Not looked at: the weights, and what the model writes")
    assert rest == with_weights.splitlines()[3:]  # the arithmetic is the same
    assert main(["train", "mine.yaml", "trainer.steps=1"]) == 2
    assert "no *.safetensors file" in capsys.readouterr().err


def test_a_refusal_comes_first_and_what_was_found_after_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"problem": f"{n} +1 =", "answer": f"First,\nthen {n}"} for n in range(1, 8)]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, told, said = check(capsys, "rewards=[{kind: exact}]")
    assert code == 2
    assert told.splitlines()[0] == "mine.yaml: refused"
    assert "\nrewards, tried\n  train: right accuracy 0; wrong accuracy 0" in told
    assert said.startswith("error: ")
    assert "is `answer` the right field" in said


def test_doubts_stand_under_the_verdict(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, told, _ = check(capsys, "data.instruction=Put it in a box.", "run.threads=1000")
    first, *lines = told.splitlines()
    assert code == 0
    assert first.startswith("mine.yaml: good, with 3 doubts. Look at the doubts first, then start it with: dapo train")
    kinds = [line.split(":")[0].strip() for line in lines[:5]]
    assert kinds == ["doubt", "doubt", "doubt", "here", "Not looked at"]
    assert "threads wait for each other" in lines[0]
    assert "unknown to the tokenizer (<unk>)" in lines[1]


def test_the_json_has_the_documented_keys_and_the_verdict_of_the_screen(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def asked(*arguments: str) -> tuple[int, dict[str, Any]]:
        code, told, _ = check(capsys, "--json", *arguments)
        found = json.loads(told)
        assert set(found) == set(documented_keys("`dapo check`"))
        assert found["exit_code"] == code
        return code, found

    code, found = asked("data.instruction=Put it in a box.", "run.threads=1000")
    assert (code, found["verdict"], found["refusal"], len(found["doubts"])) == (0, "good", None, 3)
    assert found["command"] == "dapo train mine.yaml 'data.instruction=Put it in a box.' run.threads=1000"
    assert 0 < found["memory_bytes"] < found["memory_bytes_here"]
    assert found["hours"] is None  # of a model of this size other things than products take the time
    assert "arithmetic" in found["sections"]
    assert asked("learner.ranks=9")[1]["verdict"] == "not good"
    code, found = asked("learner.lr=1")
    assert (code, found["verdict"]) == (2, "refused")
    assert "learner.learning_rate" in found["refusal"]
    (folder / "model/model.safetensors").unlink()
    code, found = asked()
    assert (code, found["verdict"]) == (NOT_HERE, "not here")
    assert "model.safetensors" in found["not_here"][0]
    (folder / "train.jsonl").write_text("{}\n")
    code, found = asked()
    assert (code, found["verdict"]) == (2, "refused")


def test_few_problems_are_a_doubt(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """7 problems: 10 steps of 32 prompts pass 46 times over them, 100 steps 457 times."""
    code, told, _ = check(capsys, "trainer.steps=100")
    assert code == 0
    assert "the run passes 457 times over its 7 training prompts" in told.splitlines()[1]
    with (folder / "train.jsonl").open("a") as file:
        file.writelines('{"problem": "9 +9 =", "answer": ""}\n' for _ in range(2))
    _, told, _ = check(capsys)
    assert told.startswith("mine.yaml: good, with 1 doubt.")
    assert "2 of 9 problems are not used. train: 7 prompts of 7 problems" in told.splitlines()[1]


def test_a_supervised_run_has_the_same_screen(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"prompt": f"{n} +1 =", "response": f"={n + 1}"} for n in range(1, 8)]
    (folder / "examples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, told, _ = check(capsys, "--sft", "sft.train=[{path: examples.jsonl}]")
    assert code == 0
    first, _, second = told.splitlines()[:3]
    assert first == "mine.yaml: good. Start it with: dapo sft mine.yaml 'sft.train=[{path: examples.jsonl}]'"
    assert second == "Not looked at: the weights. Every detail: --verbose."


def odd_models(folder: Path) -> None:
    (folder / "a_file").write_text("x")
    for name in ("no_config", "config_is_a_folder", "bad_config", "no_tokenizer", "bad_tokenizer", "list_config"):
        shutil.copytree(folder / "model", folder / name)
    (folder / "no_config/config.json").unlink()
    (folder / "config_is_a_folder/config.json").unlink()
    (folder / "config_is_a_folder/config.json").mkdir()
    (folder / "bad_config/config.json").write_text('{"model_type": ')
    (folder / "list_config/config.json").write_text("[1]")
    for file in (folder / "no_tokenizer").glob("tokenizer*"):
        file.unlink()
    (folder / "bad_tokenizer/tokenizer.json").write_text("{}")


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("./a_file", "is a file"),
        ("a_file", "is a file"),
        ("./no_config", "has no config.json"),
        ("./config_is_a_folder", "config_is_a_folder"),
        ("./bad_config", "config.json"),
        ("./list_config", "list_config"),
        ("./no_tokenizer", "tokenizer"),
        ("./bad_tokenizer", "tokenizer"),
        ("./a_file/deeper", "model.path"),
        ("x" * 300, "model.path"),
        ('"nul\\0byte"', "model.path"),
        ("''", "model.path"),
    ],
)
def test_odd_model_paths_are_refused_in_a_sentence(
    path: str, said: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd_models(folder)
    for command in ("check", "train"):
        assert main([command, "mine.yaml", f"model.path={path}"]) == 2
        error = capsys.readouterr().err
        assert said in error
        assert "Traceback" not in error


def test_a_folder_that_may_not_be_read(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(self: Path) -> object:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "iterdir", forbidden)
    code, told, said = check(capsys)
    assert code == 2
    first, _, title, arithmetic, *_ = told.splitlines()
    assert (first, title) == ("mine.yaml: refused", "arithmetic, without model and data")
    assert "32 prompts x 16 responses = 512 responses, at most 16,384 response tokens" in arithmetic
    assert "/model' cannot be read" in said
    assert "Permission denied" in said


def test_a_tokenizer_without_a_chat_template_where_one_is_needed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, said = check(capsys, "data.prompt=chat")
    assert code == 2
    assert "the tokenizer has no chat template" in said
    assert "data.prompt_template" in said


def test_a_template_that_hides_the_problem_is_refused_by_check_and_train(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hides = "data.chat_template={{ messages | length }}"
    code, told, said = check(capsys, hides)
    assert (code, told) == (2, "mine.yaml: refused\n")
    assert "leaves the user's message out" in said
    assert main(["train", "mine.yaml", hides]) == 2
    assert "leaves the user's message out" in capsys.readouterr().err
    assert not (folder / "runs/run").exists()
