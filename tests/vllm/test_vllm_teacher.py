"""A teacher on a real vLLM server: the learner's own numbers of the same weights, and a run that learns from it."""

from __future__ import annotations

import json
import math
import urllib.request

import numpy as np
import pytest
from learner_rows import make_rows
from server_process import LONGEST, PATIENCE, TEACHER, Server
from small_run import dapo, write_recipe
from transformers import AutoTokenizer

from dapo.config import schema
from dapo.engines.vllm_teacher import ServedTeacher
from dapo.errors import EngineError
from dapo.learner.teacher import Teacher
from dapo.models.load import load_model
from dapo.models.tiny import SIGNED_SUM_WORDS, make_tiny_model
from dapo.observe.metrics import read_metrics

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(3000)]
pytest.importorskip("vllm")

CLOSE = 1e-4  # nats, in float32, as of the engine's server


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("teacher"), "llama", heads=2, seed=9)


@pytest.fixture(scope="module")
def server(folder, tmp_path_factory):
    one = Server(str(folder), tmp_path_factory.mktemp("server"), TEACHER)
    one.start()
    one.wait()
    yield one
    one.kill()


@pytest.fixture
def teacher(server):
    one = ServedTeacher(server.address, patience=PATIENCE)
    yield one
    one.close()


def local(folder, temperature=1.0):
    return Teacher(load_model(str(folder), device="cpu"), schema.LearnerSection(), temperature)


def test_a_server_gives_the_learners_numbers_at_temperature_1(teacher, server, folder):
    rows = make_rows(groups=40)
    found, expected = teacher.logprobs(rows), local(folder).logprobs(rows)
    gaps = np.concatenate([np.abs(own - true) for own, true in zip(found, expected, strict=True)])
    print(f"{len(gaps)} tokens: mean gap {gaps.mean():.1e}, largest {gaps.max():.1e} nats")
    assert gaps.max() < CLOSE
    warm = local(folder, 0.7).logprobs(rows)
    assert max(float(np.abs(own - other).max()) for own, other in zip(found, warm, strict=True)) > 100 * CLOSE
    ids = [*rows[0].prompt_ids.tolist(), *rows[0].token_ids.tolist()]
    asked = {"model": teacher.model, "prompt": ids, "max_tokens": 1, "prompt_logprobs": 1}
    numbers = [entries(server, asked | {"temperature": one}) for one in (1.0, 0.5)]
    np.testing.assert_allclose(*numbers, atol=CLOSE)  # why another rollout.temperature is refused


def entries(server, body):
    request = urllib.request.Request(
        f"{server.address}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        choice = json.load(answer)["choices"][0]
    ids = body["prompt"][1:]
    return [entry[str(token)]["logprob"] for entry, token in zip(choice["prompt_logprobs"][1:], ids, strict=True)]


def test_a_server_is_asked_for_its_tokens_and_its_context(teacher, folder, tmp_path):
    assert teacher.context == LONGEST
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert teacher.check(tokenizer, LONGEST - 1) is None
    with pytest.raises(EngineError, match=f"takes {LONGEST} tokens; this run needs {LONGEST + 1}"):
        teacher.check(tokenizer, LONGEST)
    *words, last = SIGNED_SUM_WORDS
    for other, said in (([*words, "new"], "'new' here and"), (words, f"the teacher's also {last!r}")):
        changed = AutoTokenizer.from_pretrained(make_tiny_model(tmp_path / said[:3], words=other))
        assert said in teacher.check(changed, 64)
    row = make_rows(groups=1, size=1)[0]
    row.token_ids[:] = 5000
    with pytest.raises(EngineError, match="out of vocabulary"):
        teacher.logprobs([row])


def test_a_run_learns_from_a_server_as_from_the_same_folder(server, folder, tmp_path):
    recipe = write_recipe(tmp_path, heads=2)
    alone = ("preset=distillation", "rewards=[]", "data.validation=[]", "validation.every=0", "trainer.steps=2")
    runs = []
    for path in (folder, server.address):
        dapo("train", recipe, *alone, f"algorithm.teacher.path={path}", "run.if_exists=backup")
        runs.append([row for row in read_metrics(tmp_path / "run/metrics.jsonl") if row["step"]])
    for one, other in zip(*runs, strict=True):
        assert other["train/grad_norm"] > 0
        assert math.isfinite(other["teacher/kl"])
        for key in ("train/loss", "train/grad_norm", "teacher/kl", "teacher/agree", "sampling/generated_tokens"):
            assert other[key] == pytest.approx(one[key], rel=1e-3, abs=1e-5), key
