"""A teacher on a server: the model's own numbers, or a refusal that says why; what it does when the server is away."""

from __future__ import annotations

import json
import re
import threading

import numpy as np
import pytest
from learner_rows import make_rows
from teacher_server import TeacherServer
from transformers import AutoTokenizer

from dapo.config import schema
from dapo.engines import vllm_teacher
from dapo.engines.vllm_teacher import ServedTeacher, TeacherAway
from dapo.errors import EngineError
from dapo.learner.teacher import Teacher
from dapo.models.tiny import SIGNED_SUM_WORDS, make_tiny_model

JUDGE = "/v1/completions"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("teacher"), "llama", seed=9)


@pytest.fixture(scope="module")
def tokenizer(folder):
    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture
def server(folder):
    one = TeacherServer(folder)
    yield one
    one.kill()


@pytest.fixture
def make(server):
    made = []

    def build(**options):
        made.append(ServedTeacher(server.address, **{"patience": 20.0} | options))
        return made[-1]

    yield build
    for one in made:
        one.close()


def expected(server, rows):
    return Teacher(server.loaded, schema.LearnerSection(), 1.0).logprobs(rows)


def test_it_gives_the_numbers_of_the_models_own_pass_in_the_order_of_the_rows(make, server):
    rows = make_rows(groups=20)
    assert len(rows) > vllm_teacher._AT_ONCE / 2
    found = make().logprobs(rows)
    for own, true in zip(found, expected(server, rows), strict=True):
        assert own.dtype == np.float32
        np.testing.assert_allclose(own, true, atol=1e-5)
    assert sorted(server.asked) == sorted([*row.prompt_ids.tolist(), *row.token_ids.tolist()] for row in rows)


def test_a_good_server_is_taken_with_its_name_and_context(make, tokenizer):
    teacher = make()
    assert (teacher.model, teacher.context, teacher.check(tokenizer, 4095)) == ("big", 4096, None)


def test_a_request_that_was_lost_is_sent_again(make, server):
    rows = make_rows()
    server.faults = [(JUDGE, status) for status in (0, 500, 502, 503, 429)]
    for own, true in zip(make().logprobs(rows), expected(server, rows), strict=True):
        np.testing.assert_allclose(own, true, atol=1e-5)
    assert server.routes[JUDGE] == len(rows) + 5


def test_a_server_that_loses_every_other_request_fills_no_log(make, server, monkeypatch, caplog):
    monkeypatch.setattr(vllm_teacher, "_AT_ONCE", 1)

    def lose_the_next(entries):
        server.faults = [(JUDGE, 502)]
        return entries

    server.change = lose_the_next
    assert len(make().logprobs(make_rows()[:4])) == 4
    assert server.routes[JUDGE] == 4 + 3
    assert caplog.text.count("waiting for the vLLM server") == 1


def test_a_server_that_dies_within_a_call_and_returns_is_asked_for_the_rest(make, server, monkeypatch):
    monkeypatch.setattr(vllm_teacher, "_AT_ONCE", 1)
    rows, change = make_rows(), threading.Event()

    def die(entries):
        if not change.is_set():
            change.set()
            threading.Thread(target=lambda: (server.kill(), server.start())).start()
        return entries

    server.change = die
    for own, true in zip(make().logprobs(rows), expected(server, rows), strict=True):
        np.testing.assert_allclose(own, true, atol=1e-5)
    assert change.is_set()


def test_one_that_returns_with_another_model_is_refused(make, server):
    teacher = make()
    server.options["name"] = "another"
    with pytest.raises(EngineError, match=r"does not exist.*serving 'big'") as caught:
        teacher.logprobs(make_rows())
    assert not isinstance(caught.value, TeacherAway)


@pytest.mark.parametrize("how", ["hangs", "is gone", "fails over every request"])
def test_one_that_gives_no_answer_is_not_waited_for_without_limit(make, server, how, monkeypatch):
    teacher = make(patience=600.0 if how == "fails over every request" else 0.4)
    if how == "hangs":
        server.delay = 30.0
    elif how == "is gone":
        server.kill()
    else:
        server.faults = [(JUDGE, 500)] * 999
        monkeypatch.setattr("dapo.engines.vllm_waiting._PAUSE", 0.01)
    with pytest.raises(TeacherAway, match=rf"{server.address} gave no answer.*algorithm\.teacher\.patience"):
        teacher.logprobs(make_rows())
    server.start() if how == "is gone" else None


def test_nobody_there_at_the_start(folder):
    server = TeacherServer(folder)
    server.kill()
    with pytest.raises(TeacherAway, match=rf"{server.address} gave no answer"):
        ServedTeacher(server.address, patience=0.3)


def test_a_run_that_is_asked_to_end_leaves_a_silent_server_alone_and_waits_for_one_that_works(
    make, server, monkeypatch
):
    teacher = make()
    monkeypatch.setattr("dapo.http._LOOK_SECONDS", 0.02)

    def end():
        raise InterruptedError

    server.delay = 0.3
    assert len(teacher.logprobs(make_rows()[:2], end)) == 2
    monkeypatch.setattr(vllm_teacher, "ANSWER", 0.05)
    server.delay = 20.0
    with pytest.raises(InterruptedError):
        teacher.logprobs(make_rows(), end)


def entry(entries, place, value):
    """``value`` in the place of each number of a position."""
    return [e if at != place else {token: one | {"logprob": value} for token, one in e.items()} for at, e in
            enumerate(entries)]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda e: e[: len(e) // 2], r"positions came"),
        (lambda e: [*e, None], r"positions came"),
        (lambda e: None, r"TypeError"),
        (lambda e: [*e[:-1], None], r"AttributeError"),
        (lambda e: [*e[:-1], {"7777": {"logprob": -1.0}}], r"KeyError"),
        (lambda e: entry(e, len(e) - 1, None), r"TypeError"),
        (lambda e: entry(e, len(e) - 1, float("nan")), r"are nan"),
        (lambda e: entry(e, len(e) - 1, float("inf")), r"probabilities are above 1.*raw_logits"),
        (lambda e: entry(e, len(e) - 1, 0.01), r"probabilities are above 1.*raw_logits"),
        (lambda e: entry(e, 1, 11.5), r"of each of \d+ tokens .*at position 1 "),
    ],
)
def test_an_answer_without_a_log_probability_for_each_token_is_refused(make, server, change, said):
    teacher, server.change = make(), change
    with pytest.raises(EngineError, match=rf"{server.address} .*{said}") as error:
        teacher.logprobs(make_rows())
    assert "algorithm.teacher" in str(error.value)


@pytest.mark.parametrize("value", [-9999.0, float("-inf")])
def test_an_impossible_token_has_a_number_that_is_clamped_later(make, server, value):
    server.change = lambda entries: entry(entries, len(entries) - 1, value)
    (found,) = make().logprobs(make_rows()[:1])
    assert found[-1] == value
    assert np.isfinite(found[:-1]).all()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([*SIGNED_SUM_WORDS[:-2], *SIGNED_SUM_WORDS[:-3:-1]], r"token \d+ is '.*' here and '.*' there"),
        ([*SIGNED_SUM_WORDS[:-1], "new"], r"token \d+ is '.*' here and 'new' there"),
        ([*SIGNED_SUM_WORDS, "new"], r"has [\d,]+ tokens, the teacher's also 'new'"),
        (SIGNED_SUM_WORDS[:-1], r"token \d+ is '.*' here and '' there"),
    ],
)
def test_other_tokens_are_found_and_named(make, server, tokenizer, tmp_path, words, said, monkeypatch):
    monkeypatch.setattr(vllm_teacher, "_PIECE", 16)
    server.loaded.tokenizer = AutoTokenizer.from_pretrained(make_tiny_model(tmp_path, words=words))
    assert re.search(f"{said}$", make().check(tokenizer, 64))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"context": 64}, r"takes 64 tokens; this run needs 65, .*--max-model-len 65"),
        ({"tokenizer": False}, r"/detokenize answered 404.*docs/distillation"),
        ({"spoil": {"/detokenize": "<html>"}}, r"answered /detokenize with '<html>'.*algorithm\.teacher"),
        ({"spoil": {"/v1/models": {"data": []}}}, r"answered /v1/models with .*algorithm\.teacher"),
        ({"spoil": {JUDGE: {"choices": [{"text": "x"}]}}}, r"gave no log-probability .*KeyError: 'prompt_logprobs'"),
        ({"key": "a"}, r"refused a request: .*401.*starts it\. Give its key .*algorithm\.teacher\.api_key_variable"),
    ],
)
def test_a_server_that_cannot_judge_this_run_is_refused_at_the_start(make, server, tokenizer, options, said):
    server.options |= options
    with pytest.raises(EngineError, match=said):
        make().check(tokenizer, 64)


def test_a_key_is_sent_and_shown_nowhere(make, server, tokenizer):
    server.options["key"] = "a-secret-of-mine"
    assert make(api_key="a-secret-of-mine").check(tokenizer, 64) is None
    with pytest.raises(EngineError) as caught:
        make(api_key="another-secret")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("status", [401, 500])
@pytest.mark.parametrize("said", ["<p>{}</p>", {"error": {"message": "Bearer {} is wrong"}}, {"detail": [["{}"]]}])
def test_a_key_that_a_server_repeats_is_in_no_message(make, server, said, status, monkeypatch, caplog):
    monkeypatch.setattr("dapo.engines.vllm_waiting._PAUSE", 0.01)
    key = "a-secret/of-mine"
    teacher = make(api_key=key)
    server.faults = [(JUDGE, status)] * 999
    repeated = json.dumps(said).replace("{}", key).replace("/of", r"\/of")  # as some servers write it
    server.options["spoil"] = {JUDGE: json.loads(repeated) if isinstance(said, str) else repeated}
    with pytest.raises(EngineError, match="<key>") as caught:
        teacher.logprobs(make_rows())
    assert "secret" not in str(caught.value) + caplog.text
    assert ("<key>" in caplog.text) == (status == 500)
