"""``dapo check`` calls nothing good that does not fit, that its engine refuses, or that it could not look at."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from test_cli_check_memory import facts_with

from dapo.cli.check_machine import Fit, Looked
from dapo.cli.check_try import Measured, judged
from dapo.cli.main import main
from dapo.config import recipe_from_dict
from dapo.models.tiny import make_tiny_model, make_word_tokenizer
from dapo.types.batch import Group, Prompt, Response, Score
from dapo.types.enums import FinishReason

NOT_HERE, REFUSED = 3, 2


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    make_tiny_model(tmp_path / "model", hidden=16, layers=2, heads=2, ffn=32)
    rows = [{"problem": f"{n} +{m} =", "answer": str(n + m)} for n in range(1, 9) for m in range(1, 9)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "mine.yaml").write_text(
        "model: {path: ./model}\ndata: {train: [{path: train.jsonl}], prompt: raw}\n"
        "rewards: [{kind: exact, pattern: '=(\\d+)$'}]\n"
        "rollout: {prompts_per_step: 4, group_size: 4, max_response_tokens: 32}\n"
        "trainer: {steps: 10}\nlearner: {warmup: 1}\nvalidation: {every: 0}\n"
    )
    return tmp_path


def check(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["check", "mine.yaml", *arguments])
    found = capsys.readouterr()
    return code, found.out, found.err


# ---------------------------------------------------------------------- what fits


def test_a_run_above_the_machines_memory_is_not_good(folder, capsys, monkeypatch):
    assert check(capsys)[0] == 0
    monkeypatch.setattr("dapo.cli.check_machine.memory_size", lambda: 2**28)  # torch alone takes more
    code, told, _ = check(capsys)
    first, second = told.splitlines()[:2]
    assert code == NOT_HERE
    assert "good" not in first
    assert second.startswith("  not here: it takes about 35")
    assert "this machine, without a GPU, has 256.0 MiB: a lower learner.microbatch_tokens" in second


def test_keys_and_values_of_responses_at_their_limit_are_no_refusal(folder, capsys, monkeypatch):
    monkeypatch.setattr("dapo.cli.check_machine.memory_size", lambda: 2**40)
    asked = [
        "check",
        "mine.yaml",
        "rollout.prompts_per_step=4096",
        "rollout.group_size=64",
        "learner.minibatch_prompts=4",
    ]
    assert main(asked) == 0
    assert "mine.yaml: good" in capsys.readouterr().out
    monkeypatch.setattr("dapo.cli.check_machine.memory_size", lambda: 2 * 2**30)
    assert main(asked) == 0
    said = capsys.readouterr().out
    assert "mine.yaml: not good" in said
    assert "rollout.slots" in said


def test_a_run_near_the_machines_memory_is_doubted(folder, capsys, monkeypatch):
    monkeypatch.setattr("dapo.cli.check_machine.memory_size", lambda: 400 * 2**20)
    code, told, _ = check(capsys)
    assert code == 0
    assert "  doubt: it takes about 35" in told


@pytest.mark.parametrize(
    ("settings", "cores", "said"),
    [
        (["learner.ranks=999"], 2, "an optimizer step has 16 responses: the other ranks would never have one"),
        (["learner.ranks=8", "learner.minibatch_prompts=1"], 64, "has 4 responses: the other ranks"),
        (["learner.ranks=8"], 2, "8 processes compute at once"),
        (["rollout.engines=6"], 4, "6 processes compute at once"),
        (["rollout.max_staleness=2", "rollout.engines=2", "learner.ranks=2"], 3, "4 processes compute at once"),
        (["rollout.engines=2", "run.threads=4"], 4, "2 processes of 4 threads (run.threads) compute at once"),
    ],
)
def test_more_processes_than_rows_or_cores_are_not_good(folder, capsys, monkeypatch, settings, cores, said):
    monkeypatch.setattr("dapo.cli.check_machine.core_count", lambda: cores)
    monkeypatch.setattr("dapo.cli.check_machine.memory_size", lambda: 2**40)
    code, told, _ = check(capsys, *settings)
    assert told.splitlines()[0].startswith("mine.yaml: not good, with ")
    assert said in told.split("\n\n")[0]
    assert code == 0


def test_as_many_processes_as_cores_are_good(folder, capsys, monkeypatch):
    monkeypatch.setattr("dapo.cli.check_machine.core_count", lambda: 4)
    monkeypatch.setattr("dapo.cli.check_machine.memory_size", lambda: 2**40)
    for settings in (["learner.ranks=4"], ["rollout.engines=4"], ["rollout.max_staleness=2", "rollout.engines=3"]):
        assert check(capsys, *settings)[1].startswith("mine.yaml: good"), settings


# ---------------------------------------------------------------------- the engine's own refusal


def gemma2(folder: Path, **changed: object) -> None:
    from transformers import Gemma2Config, Gemma2ForCausalLM

    tokenizer = make_word_tokenizer()
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = Gemma2Config(
        vocab_size=len(tokenizer), num_key_value_heads=2, head_dim=8, eos_token_id=1, pad_token_id=0, **sizes, **changed
    )
    Gemma2ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def test_a_soft_cap_that_the_engine_does_not_compute_is_refused_before_a_run(folder, capsys):
    gemma2(folder / "gemma")
    code, told, said = check(capsys, "model.path=./gemma")
    assert (code, told.splitlines()[0]) == (REFUSED, "mine.yaml: refused")
    assert "a soft cap of its scores (softcap), which the slot cache does not compute" in said
    assert "Set rollout.engine: generate" in said
    assert check(capsys, "model.path=./gemma", "rollout.engine=generate")[0] == 0
    gemma2(folder / "plain", attn_logit_softcapping=None)
    assert check(capsys, "model.path=./plain")[0] == 0


def test_what_check_refuses_of_a_model_is_what_the_run_refuses(folder, capsys):
    gemma2(folder / "gemma")
    refused = check(capsys, "model.path=./gemma")[2]
    assert main(["train", "mine.yaml", "model.path=./gemma", "trainer.steps=1"]) != 0
    said = capsys.readouterr().err
    reason = "the model's attention has a soft cap of its scores (softcap), which the slot cache does not compute"
    assert reason in said
    assert reason in refused


# ---------------------------------------------------------------------- an episode that fails

GAMES = """
def broken(prompt, rng):
    turn = yield ""
    raise RuntimeError("the game server is away")

def fails_late(prompt, rng):
    turn = yield ""
    turn = yield "="
    return {"accuracy": 1 / 0}

def fine(prompt, rng):
    turn = yield ""
    return {"accuracy": 1.0}
"""


@pytest.mark.parametrize(
    ("game", "said"), [("broken", "the game server is away"), ("fails_late", "division by zero"), ("fine", None)]
)
def test_a_failed_episode_is_a_refusal_with_its_reason(folder, capsys, game, said):
    (folder / "games_that_fail.py").write_text(GAMES)
    settings = [f"environment.kind=games_that_fail:{game}", "rewards=[{name: accuracy, kind: environment}]"]
    code, _told, error = check(capsys, *settings)
    assert code == (0 if said is None else REFUSED)
    assert (said or "") in error
    ended = check(capsys, *settings, "environment.on_error=end")
    assert (ended[0], "every episode of the environment failed" in ended[2]) == (code, said is not None)


# ---------------------------------------------------------------------- without a network


def test_a_model_of_the_hub_without_a_network_gets_a_verdict_on_what_is_known(folder, capsys, monkeypatch):
    monkeypatch.setattr("dapo.models.tokenizer.unreachable", lambda: "https://hub.example cannot be reached (down)")
    code, told, said = check(capsys, "model.path=someone/model")
    first, second, _, *rest = told.splitlines()  # the third: a doubt about the warm-up, which needs no model
    assert (code, said) == (NOT_HERE, "")
    assert first.startswith("mine.yaml: this machine cannot run it")
    assert second.startswith("  not here: model.path 'someone/model' is no folder here")
    assert rest[0].startswith("Not looked at: the model, the data, the rewards, memory and hours; ")
    assert "4 prompts x 4 responses = 16 responses" in told
    assert check(capsys, "model.path=someone/model", "rewards.0.kind=function", "rewards.0.function=no_such:f")[0] == 2


def test_an_offline_model_that_is_not_in_the_cache_is_not_refused(folder, capsys, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # which it reads when it is imported
    code, told, _ = check(capsys, "model.path=someone/model")
    assert code == NOT_HERE
    assert "hub did not give its tokenizer" in told


def test_data_of_the_hub_without_a_network_is_not_refused(folder, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    code, told, _ = check(capsys, "data.train.0.path=hub:someone/problems")
    assert code == NOT_HERE
    assert told.count("hub:someone/problems needs the package datasets") == 1
    monkeypatch.setitem(sys.modules, "datasets", types.ModuleType("datasets"))
    monkeypatch.setattr("dapo.data.hub_sets.unreachable", lambda: "https://hub.example cannot be reached (down)")
    code, told, _ = check(capsys, "data.train.0.path=hub:someone/problems")
    assert code == NOT_HERE
    assert "  not here: hub:someone/problems: https://hub.example cannot be reached (down)" in told


# ---------------------------------------------------------------------- what the model wrote

GIVEN = {
    "model": {"path": "a/b", "device": "cpu"},
    "data": {"train": [{"task": "signed_sum", "name": "sums"}]},
    "rollout": {"prompts_per_step": 4, "group_size": 4, "max_response_tokens": 100},
    "rewards": [{"kind": "math"}],
    "trainer": {"steps": 100},
}
LOOKED = Looked(facts_with(100, positions=512), Fit(), forms={"sums": "\\boxed{GOLD}"})


def response(right: float = 0.0, *, cut: bool = False, answer: str | None = "7", text: str = "it is 7"):
    tokens = np.zeros(100 if cut else 10, np.int64)
    numbers = np.zeros(len(tokens), np.float32), np.zeros(len(tokens), np.int32)
    finish = FinishReason.LENGTH if cut else FinishReason.STOP
    return Response(tokens, *numbers, finish, text), Score({"accuracy": right}, right, answer=answer)


def tried(*groups, seconds: float = 1.0, elsewhere=None, **sections):
    made = []
    for index, responses in enumerate(groups):
        prompt = Prompt("", "", np.zeros(5, np.int64), "What is 3 + 4?", "7", "sums")
        made.append(Group(index, prompt, [one for one, _ in responses], [score for _, score in responses]))
    found = Measured(made, seconds, seconds, 2**30, elsewhere or {})
    return judged(recipe_from_dict({**GIVEN, **sections}).recipe, LOOKED, found)[1]


MIXED = [response(1), response(0), response(1), response(0)]


def test_a_model_that_is_sometimes_right_is_good():
    found = tried(MIXED, MIXED)
    assert found.grave == found.doubts == found.refusals == []


def test_responses_that_are_mostly_cut_off_are_not_good():
    cut = [response(1), *[response(0, cut=True)] * 3]
    (said,) = tried(cut, cut).grave
    assert said.startswith("75% of the responses were cut off at 100 tokens. ")
    assert "rollout.max_response_tokens=200 lets responses end" in said
    half = [response(1), response(0), *[response(0, cut=True)] * 2]
    assert tried(half, half).grave == []


def test_a_longer_limit_is_not_suggested_where_the_model_reads_no_more():
    cut = [response(1), *[response(0, cut=True)] * 3]
    rollout = {**GIVEN["rollout"], "max_response_tokens": 400}
    assert "max_response_tokens=" not in tried(cut, rollout=rollout).grave[0]


def test_an_answer_that_is_never_read_is_refused_with_what_the_model_wrote():
    unread = [response(0, answer=None, text="Well,\nseven I think")] * 4
    (said,) = tried(unread, unread, elsewhere={"last_number": 0.3}).refusals
    assert "read an answer in none of 8 responses" in said
    assert "'Well, seven I think'" in said
    assert "With rewards.0.kind=last_number, 30% of them would be right." in said
    assert r'data.few_shot=[{"problem": "What is 3 + 4?", "response": "\\boxed{7}"}]' in said


def test_a_reward_that_names_no_answer_is_not_refused_for_reading_none():
    silent = [response(1, answer=None), response(0, answer=None)] * 2
    assert tried(silent, rewards=[{"kind": "function", "function": "mine:f"}]).refusals == []


def test_almost_nothing_right_is_not_good_where_the_run_takes_hours():
    """One of 32 responses: 4 groups of 8, one mixed: a step generates 16 groups, 4 times these."""
    few = [[response(1), *[response(0)] * 7], *[[response(0)] * 8] * 3]
    quick = tried(*few, seconds=0.1)  # 100 steps of 0.5 s
    assert quick.grave == []
    assert quick.doubts[0].startswith("3% of the responses were right. A worked example")
    slow = tried(*few, seconds=60.0)  # 100 steps of 4 x 60 + 60 s
    assert slow.grave[0].startswith("3% of the responses were right, and the run takes about 8.3 h")


def test_nothing_right_and_no_mixed_group_are_not_good():
    (said,) = tried([response(0)] * 4).grave
    assert said.startswith("0% of the responses were right")
    assert "dapo sft" in said
    (said,) = tried([response(1)] * 4).grave
    assert said.startswith("no group has right and wrong responses")
