"""Runs that learn from a teacher: without rewards and beside them, by source, resumed, apart, in episodes; refusals."""

from __future__ import annotations

import math
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from small_run import dapo, write_recipe
from teacher_server import TeacherServer
from test_run_environment import QUICK
from test_run_environment import recipe as playing
from test_run_rows_by_turn import SETTINGS
from test_run_rows_by_turn import recipe as by_turn

from dapo.models.load import load_model
from dapo.models.tiny import make_tiny_model
from dapo.observe.metrics import read_metrics, without_clock

PATH = "algorithm.teacher.path"
ALONE = (
    "preset=distillation",
    "rewards=[]",
    "data.validation=[]",
    "validation.every=0",
    f"{PATH}=teacher",
    "learner.learning_rate=2e-3",
)


NONE = [one for one in ALONE if not one.startswith(PATH)]
SOURCES = "data.train=[{task: signed_sum, name: a, size: 32}, {task: signed_sum, name: b, seed: 3, size: 32}]"


def rows_of(run: Path) -> list[dict]:
    return [row for row in read_metrics(run / "metrics.jsonl") if row["step"]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A student, a teacher near it, and a recipe."""
    write_recipe(tmp_path)
    make_tiny_model(tmp_path / "teacher", seed=0)
    weights, random = load_file(tmp_path / "teacher/model.safetensors"), torch.Generator().manual_seed(1)
    moved = {n: w + 0.05 * torch.randn(w.shape, generator=random) if w.dim() > 1 else w for n, w in weights.items()}
    save_file(moved, tmp_path / "teacher/model.safetensors", metadata={"format": "pt"})
    return tmp_path


def train(folder: Path, *overrides: str) -> list[dict]:
    dapo("train", "recipe.yaml", *overrides, "run.if_exists=backup", cwd=folder)
    return rows_of(folder / "run")


@pytest.mark.parametrize("term", ["advantage", "loss"])
def test_without_rewards_the_student_comes_nearer_to_its_teacher(folder, term):
    rows = train(folder, *ALONE, f"algorithm.teacher.term={term}", "trainer.steps=40", "rollout.prompts_per_step=8")
    kl, agree = (np.array([row[f"teacher/{name}"] for row in rows]) for name in ("kl", "agree"))
    assert kl[-8:].mean() < 0.85 * kl[:8].mean()
    assert agree[-8:].mean() > agree[:8].mean()
    for row in rows:
        assert row["groups/trained"] == 8
        assert row["reward/advantage_abs_mean"] == 0.0
        assert row["reward/accuracy"] is None or math.isnan(row["reward/accuracy"])
    dapo("report", "run", cwd=folder)


def test_a_group_of_one_and_truncated_responses_train(folder):
    rows = train(folder, *ALONE, "rollout.group_size=1", "trainer.steps=2", "rollout.max_response_tokens=4")
    for row in rows:
        assert row["response/truncated_share"] > 0.5
        assert row["train/loss_tokens"] * row["train/optimizer_steps"] == row["sampling/generated_tokens"]


def test_a_resumed_run_is_the_same_to_the_digit(folder):
    beside = (
        "algorithm.teacher.path=teacher",
        "trainer.steps=4",
        "algorithm.teacher.coefficient=0.1",
        "validation.every=0",
    )
    whole = train(folder, *beside)
    train(folder, *beside, "trainer.steps=2")
    dapo("train", "--resume", "run", "trainer.steps=4", cwd=folder)
    for one, other in zip(whole, rows_of(folder / "run"), strict=True):
        assert without_clock(one) == without_clock(other)
    assert all(math.isfinite(row["teacher/kl"]) for row in whole)
    assert any(row["reward/advantage_abs_mean"] > 0 for row in whole)


def test_engines_apart_and_overlap_judge_tokens_of_older_weights_too(folder):
    overlap = (
        "rollout.max_staleness=1",
        "rollout.overlap_turns=4",
        "rollout.engines=2",
        "algorithm.teacher.offload=true",
    )
    rows = train(folder, *ALONE, *overlap, "trainer.steps=3")
    assert all(0 < row["teacher/agree"] < 1 for row in rows)
    assert max(row["policy/staleness_max"] for row in rows) >= 1


def test_only_sources_with_a_teacher_are_judged(folder):
    rows = train(folder, *NONE, SOURCES, "algorithm.teacher.by_source={a: teacher}", "trainer.steps=2")
    assert all(math.isfinite(row["teacher/kl"]) for row in rows)
    both = "algorithm.teacher.by_source={a: teacher, b: model}"
    again = train(folder, *NONE, SOURCES, both, "trainer.steps=2")
    assert 0 < abs(again[0]["teacher/kl"]) < abs(rows[0]["teacher/kl"])  # to its own model the student is at 0


@pytest.mark.parametrize("rows_are", ["append", "turns"])
def test_in_episodes_the_students_own_tokens_are_judged_in_their_places(tmp_path, rows_are):
    """A teacher that is the student agrees with every token, of which replies are none."""
    name, more = (playing(tmp_path).name, QUICK) if rows_are == "append" else by_turn(tmp_path)
    more = more if rows_are == "append" else (*SETTINGS, *more)
    same = ("algorithm.teacher.path=model", "trainer.steps=1", "learner.minibatch_prompts=4")
    dapo("train", name, *more, *same, cwd=tmp_path)
    (row,) = rows_of(tmp_path / "run")
    assert row["environment/reply_tokens"] > 0
    assert row["teacher/kl"] == pytest.approx(0.0, abs=1e-5)
    assert row["teacher/agree"] == pytest.approx(1.0, abs=1e-4)


@pytest.mark.cluster
def test_two_ranks_learn_from_a_teacher(folder):
    one = train(folder, *ALONE, "trainer.steps=1")
    two = train(folder, *ALONE, "trainer.steps=1", "learner.ranks=2")
    for key in ("train/loss", "teacher/kl", "teacher/agree", "train/grad_norm"):
        assert one[0][key] == pytest.approx(two[0][key], rel=1e-3), key


@pytest.fixture
def server(folder: Path) -> Iterator[TeacherServer]:
    one = TeacherServer(folder / "teacher")
    yield one
    one.kill()


def without_seconds(row: dict) -> dict:
    return {key: value for key, value in without_clock(row).items() if isinstance(value, float)}


@pytest.mark.parametrize("term", ["advantage", "loss"])
def test_a_server_teaches_as_the_same_model_in_the_learner_does(folder, server, term):
    more = (f"algorithm.teacher.term={term}", "trainer.steps=2")
    local = train(folder, *ALONE, *more)
    served = train(folder, *ALONE, *more, f"{PATH}={server.address}")
    assert len(server.asked) >= 2 * 16
    for one, other in zip(local, served, strict=True):
        assert without_seconds(other) == pytest.approx(without_seconds(one), rel=1e-3, abs=1e-5, nan_ok=True)
    assert server.address in (folder / "run/recipe.resolved.yaml").read_text()


def test_one_source_asks_a_server_and_another_the_learner(folder, server):
    by_source = "algorithm.teacher.by_source={{a: teacher, b: {}}}".format
    local = train(folder, *NONE, SOURCES, by_source("teacher"), "trainer.steps=2")
    mixed = train(folder, *NONE, SOURCES, by_source(server.address), "trainer.steps=2")
    assert 0 < len(server.asked) < 2 * 16 + 1
    for one, other in zip(local, mixed, strict=True):
        assert without_seconds(other) == pytest.approx(without_seconds(one), rel=1e-3, abs=1e-5, nan_ok=True)


def test_a_server_of_another_vocabulary_is_refused_as_a_folder_is(folder, server):
    from dapo.models.tiny import SIGNED_SUM_WORDS

    other = make_tiny_model(folder / "other", seed=0, words=[*SIGNED_SUM_WORDS[:-2], "new", SIGNED_SUM_WORDS[-2]])
    server.loaded = load_model(str(other), device="cpu")
    said = refused(folder, f"{PATH}={server.address}")
    assert f"{server.address} has another vocabulary than the student" in said
    assert "here and 'new' there" in said
    assert "Take a teacher of the student's family" in said


def test_a_context_that_is_too_short_is_refused(folder, server):
    server.options["context"] = 24
    assert "takes 24 tokens; this run needs" in refused(folder, f"{PATH}={server.address}")


def test_a_context_need_not_hold_responses_to_validation_problems(folder, server):
    server.options["context"] = 9 + 24 + 1
    longer = (f"{PATH}={server.address}", "validation.max_response_tokens=40", "trainer.steps=1", "learner.warmup=0")
    dapo("check", "recipe.yaml", *longer, cwd=folder)
    assert train(folder, *longer)


def test_check_asks_the_server_and_counts_no_memory_of_it(folder, server):
    done = dapo("check", "recipe.yaml", "--verbose", *ALONE, f"{PATH}={server.address}", cwd=folder)
    said = " ".join(done.stdout.split())
    assert f"teacher at {server.address}: big, 4,096 tokens a row; its tokens are the student's" in said
    assert "one request a response and step" in said
    assert "1 teacher: " not in said


def test_sigterm_while_the_server_is_silent_loses_nothing(folder, server, monkeypatch):
    """The step at hand is sampled anew after the resume, to the same digits."""
    whole = train(folder, *ALONE, f"{PATH}={server.address}", "trainer.steps=3")
    monkeypatch.setattr("dapo.engines.vllm_teacher.ANSWER", 0.05)
    monkeypatch.setattr("dapo.http._LOOK_SECONDS", 0.02)
    first, server.asked, once, speaks = len(server.asked), [], threading.Lock(), threading.Event()

    def silent(entries):
        if len(server.asked) >= first // 2:
            if once.acquire(blocking=False):
                os.kill(os.getpid(), signal.SIGTERM)
            speaks.wait(60)
        return entries

    server.change = silent
    served = (f"{PATH}={server.address}", "trainer.steps=3", "run.if_exists=backup")
    done = dapo("train", "recipe.yaml", *ALONE, *served, cwd=folder, expect=None)
    assert len(rows_of(folder / "run")) == 1, done.stdout + done.stderr
    server.change = lambda entries: entries
    speaks.set()
    dapo("train", "--resume", "run", cwd=folder)
    for one, other in zip(whole, rows_of(folder / "run"), strict=True):
        assert without_seconds(other) == pytest.approx(without_seconds(one), rel=1e-6, nan_ok=True)


def test_a_server_that_is_gone_for_good_ends_the_run_and_a_resume_goes_on(folder, server):
    whole = train(folder, *ALONE, f"{PATH}={server.address}", "trainer.steps=3")
    first, server.asked, once = len(server.asked), [], threading.Lock()

    def die(entries):
        if len(server.asked) >= first // 2 and once.acquire(blocking=False):
            server.kill()
        return entries

    server.change = die
    away = (f"{PATH}={server.address}", "algorithm.teacher.patience=0.5", "trainer.steps=3", "run.if_exists=backup")
    done = dapo("train", "recipe.yaml", *ALONE, *away, cwd=folder, expect=1)
    assert f"the vLLM server at {server.address} gave no answer" in done.stderr
    assert len(rows_of(folder / "run")) == 1
    server.change = lambda entries: entries
    server.start()
    dapo("train", "--resume", "run", cwd=folder)
    for one, other in zip(whole, rows_of(folder / "run"), strict=True):
        assert without_seconds(other) == pytest.approx(without_seconds(one), rel=1e-6, nan_ok=True)


def refused(folder: Path, *overrides: str) -> str:
    said = ""
    for command in ("check", "train"):
        done = dapo(command, "recipe.yaml", *overrides, cwd=folder, expect=None)
        assert done.returncode != 0, command
        said = done.stdout + done.stderr
        assert not (folder / "run/metrics.jsonl").exists()
    return " ".join(said.split())


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("algorithm.teacher.path=./nowhere",), "algorithm.teacher.path './nowhere' is not a folder here"),
        ((f"{PATH}=http://localhost:8001/v1",), "expected a vLLM server as http://HOST:PORT"),
        ((f"{PATH}=http://me:s3cr3t@localhost:8001",), "without a path, a user or a password"),
        (("algorithm.teacher.by_source={signed_sum: 'http://me:s3cr3t@localhost:8001'}",), "a user or a password"),
        ((f"{PATH}=http://localhost:99999",), "expected a vLLM server as http://HOST:PORT"),
        ((f"{PATH}=http://:8001",), "expected a vLLM server as http://HOST:PORT"),
        ((f"{PATH}=s3://bucket/model",), "expected a vLLM server as http://HOST:PORT"),
        ((f"{PATH}=http://localhost:8001", "rollout.temperature=0.7"), "rollout.temperature is 0.7: set that to 1"),
        (
            (
                f"{PATH}=http://LOCALHOST:8001/",
                "rollout.engine=vllm_server",
                "rollout.server.url=http://127.0.0.1:8001",
            ),
            "is the engine's server",
        ),
        ((f"{PATH}=http://localhost:8001", "algorithm.teacher.offload=true"), "every teacher is on a server"),
        ((f"{PATH}=teacher", "algorithm.teacher.patience=5"), "is only read with a teacher on a server"),
        ((f"{PATH}=http://localhost:8001", "algorithm.teacher.api_key_variable=NO_SUCH_KEY"), "NO_SUCH_KEY"),
        (
            (f"{PATH}=http://localhost:9", "algorithm.teacher.patience=0.2"),
            "the vLLM server at http://localhost:9 gave no answer",
        ),
        (("algorithm.teacher.coefficient=0.5",), "names no teacher"),
        (("algorithm.teacher.path=teacher", "algorithm.teacher.coefficient=0"), "the teacher has no effect"),
        (("algorithm.teacher.by_source={other: teacher}",), "names other, and the training sources are signed_sum"),
        (("rewards=[]", "data.validation=[]"), "there is no teacher"),
        ((*ALONE, "algorithm.dynamic_sampling.mode=filter"), "set mode: off"),
        ((*ALONE, "algorithm.overlong_punishment.enabled=true"), "length alone would count"),
        ((*ALONE, "data.validation=[{task: signed_sum, name: h, seed: 2, size: 6}]"), "no reward says what is right"),
        (("algorithm.teacher.path=teacher", "algorithm.loss.kind=clip_cov"), "marks tokens by the response's"),
    ],
)
def test_what_cannot_teach_is_refused_before_work_starts(folder, overrides, said):
    shown = refused(folder, *overrides)
    assert said in shown
    assert "s3cr3t" not in shown


def test_another_vocabulary_is_refused_with_what_differs(folder):
    from dapo.models.tiny import SIGNED_SUM_WORDS

    make_tiny_model(folder / "other", seed=0, words=[*SIGNED_SUM_WORDS[:-2], "new", SIGNED_SUM_WORDS[-2]])
    said = refused(folder, "algorithm.teacher.path=other")
    assert "other has another vocabulary than the student" in said
    assert repr(SIGNED_SUM_WORDS[-2]) in said
    assert "Take a teacher of the student's family" in said


def test_check_counts_the_teacher(folder):
    done = dapo("check", "recipe.yaml", "--verbose", *ALONE, cwd=folder)
    assert "1 teacher: " in done.stdout
    assert "teacher of signed_sum: teacher, as an advantage of each token, coefficient 1, alone" in " ".join(
        done.stdout.split()
    )
