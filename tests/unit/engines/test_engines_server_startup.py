"""Servers that cannot be what is needed are refused at the start, with the next move; each serves one trainer."""

from __future__ import annotations

import asyncio
import re
import threading

import pytest
import torch
from server_parts import building, drain, finish_under, requests, wait_for
from stand_in_server import StandIn

from dapo.engines.requests import Queue
from dapo.engines.vllm_lease import ServerLease
from dapo.engines.vllm_server import ServerEngine
from dapo.errors import EngineError
from dapo.models.checksum import checksum

pytest.importorskip("aiohttp")

PAGE = "<html><body>Welcome to nginx!</body></html>"


@pytest.fixture
def make(tmp_path):
    """Makes a server and an engine that has published version 1 (the number 1)."""
    with building(tmp_path) as build:
        yield build


def refused(make, says, **options):
    with pytest.raises(EngineError) as caught:
        make(**options)
    assert re.search(says, str(caught.value)), caught.value


@pytest.mark.parametrize(
    "answer",
    [
        {}, [], PAGE, {"data": []}, {"data": {}}, {"data": [7]}, {"data": [None]}, "null", 7,
        {"data": [{"max_model_len": "4096"}]}, {"data": [{"max_model_len": True}]}, {"data": [{"max_model_len": -1}]},
        {"data": [{"max_model_len": 4096.5}]}, "[" * 100_000,
    ],
)  # fmt: skip
def test_no_list_of_models(make, answer):
    refused(
        make,
        r"answered /v1/models with .*; expected .*max_model_len.*rollout\.server\.url",
        spoil={"/v1/models": answer},
    )


@pytest.mark.parametrize("answer", [PAGE, {}, [], {"weight_version": 7}, {"weight_version": None}])
def test_no_name_of_weights(make, answer):
    refused(make, r"answered /weight_info with .*; expected .*rollout\.server\.url", spoil={"/weight_info": answer})


@pytest.mark.parametrize("answer", [PAGE, {}, {"results": "no"}, {"results": []}])
def test_no_answers_of_workers(make, answer):
    refused(make, r"answered /collective_rpc with .*rollout\.server\.url", spoil={"/collective_rpc": answer})


@pytest.mark.parametrize("answer", [PAGE, {}, {"choices": []}, {"choices": [{"token_ids": [1]}]}])
def test_no_response(make, answer):
    refused(
        make, r"answered /inference/v1/generate with .*rollout\.server\.url", spoil={"/inference/v1/generate": answer}
    )


def test_an_answer_larger_than_any_is_not_read_to_its_end(make, help, monkeypatch):
    monkeypatch.setattr("dapo.engines.vllm_dispatch._FIRST_PAUSE", 0.001)
    monkeypatch.setattr("dapo.engines.vllm_http._MOST_BYTES", 10_000)
    server, engine = make()
    server.answers = [(200, {"choices": ["x" * 100_000]})]
    engine.submit(requests(help, 1, 1))
    finish_under(drain(engine, 1), 1, 1)
    assert len(server.generated) == 2
    server.answers = [(200, {"choices": ["x" * 100_000]})] * 9
    engine.submit(requests(help, 1, 1))
    assert "larger than 26384 bytes" in drain(engine, 1)[(0, 0)].reason  # 10,000, and 2 KiB for each of eight tokens


CONFIG = {
    "vocab_size": 40, "rope_parameters": {"rope_theta": 1e4, "factor": [1, 2]}, "rms_norm_eps": 1e-6,
    "hidden_act": "silu", "final_logit_softcapping": None, "num_experts_per_tok": 2, "logits_scaling": 1.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({"rope_parameters": {"rope_theta": 1e6}}, r"rope_parameters\.rope_theta is 1000000.0 there and 10000.0 here"),
        ({"rope_parameters": {"factor": [1, 3]}}, r"rope_parameters\.factor is \[1, 3\] there"),
        ({"rms_norm_eps": 1e-5}, "rms_norm_eps is 1e-05 there and 1e-06 here"),
        ({"hidden_act": "gelu"}, "hidden_act is gelu there and silu here"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping is 30.0 there and None here"),
        ({"num_experts_per_tok": 4}, "num_experts_per_tok is 4 there"),
        ({"logits_scaling": 8.0}, "logits_scaling is 8.0 there"),
    ],
)
def test_what_tensors_do_not_show_is_compared_before_a_token_is_sent(tmp_path, other, says):
    server = StandIn(config=CONFIG | other)
    try:
        with pytest.raises(EngineError, match=rf"another model than this run: .*{says}.*model\.path"):
            ServerEngine(server.address, "runs/one", vocabulary=40, longest=60, config=CONFIG)
        assert server.routes["/inference/v1/generate"] == 0
    finally:
        server.kill()


@pytest.mark.parametrize(
    "options", [{"config": CONFIG | {"dtype": "bfloat16", "num_hidden_layers": 5}}, {"config": {}}]
)
def test_other_settings_of_a_configuration_are_left_to_tensors_and_the_sync_check(tmp_path, options):
    server = StandIn(**options)
    config = CONFIG | {"rope_parameters": {"rope_theta": 1e4, "factor": (1, 2)}, "num_steps": 4}
    ServerEngine(server.address, "runs/one", vocabulary=40, longest=60, config=config).close()
    server.kill()


def test_a_server_that_dies_of_the_last_token_is_told_as_one_with_fewer(tmp_path):
    class Dying(StandIn):
        def generate(self, body):
            return (500, {"error": "EngineCore died"}) if body["token_ids"] == [39] else super().generate(body)

    server = Dying(extension=False)
    try:
        with pytest.raises(EngineError, match=r"500: EngineCore died.*sent token 39.*vocabulary of 40.*model\.path"):
            ServerEngine(server.address, "runs/one", vocabulary=40, longest=60)
    finally:
        server.kill()


# ---------------------------------------------------------------------- what it computes with


def test_checksums_come_from_the_server_and_its_own_tensors_are_another_model(make):
    server, engine = make()
    assert engine.checksums() == {"value": ("float32", checksum(torch.tensor(1.0)))}
    server.value = 7.0
    assert engine.checksums() == {"value": ("float32", checksum(torch.tensor(7.0)))}
    server.options["strange"] = ["model.layers.2.mlp.down_proj.weight"]
    with pytest.raises(EngineError, match=r"1 tensors for which nothing was published \(model\.layers\.2.*model\.path"):
        engine.checksums()


def test_no_checksums_without_the_extension_or_of_a_server_started_again(make):
    _, engine = make(extension=False)
    assert engine.checksums() is None
    server, engine = make()
    server.forget()
    assert engine.checksums() is None


# ---------------------------------------------------------------------- one trainer at a time


def test_a_second_trainer_is_refused_and_the_first_goes_on(make, help, tmp_path):
    server, one = make(heartbeat=0.05)
    with pytest.raises(EngineError) as caught:
        ServerEngine(server.address, "runs/two", vocabulary=40, longest=60, patience=120.0)
    said = str(caught.value)
    for part in ("runs/one", "process", "two trainers", "a server of its own"):
        assert part in said
    one.submit(requests(help, 1))
    finish_under(drain(one, 2), 1, 1)
    one.close()  # and with it the claim
    ServerEngine(server.address, "runs/two", vocabulary=40, longest=60).close()


def test_a_claim_that_is_not_renewed_is_waited_for(make, caplog):
    server, engine = make()
    engine.close()
    server.worker.claim_server("dapo-dead", "runs/killed (process 7 on far)", 0.2)
    ServerEngine(server.address, "runs/two", vocabulary=40, longest=60).close()
    assert "runs/killed (process 7 on far) has the vLLM server" in caplog.text


def test_the_one_of_two_waiting_trainers_that_came_too_late_is_refused(monkeypatch):
    """Both wait for a dead one's claim to end; the other gets the server, and renews."""
    monkeypatch.setattr("dapo.engines.vllm_lease._LOOK_AGAIN", 0.01)
    holders = [
        ("dapo-dead", "runs/killed", 0.01),
        *(("dapo-two", "runs/two", 30.0) for _ in range(3)),
        ("dapo-me", "", 1.0),
    ]

    class Workers:
        address = "http://server"

        async def workers(self, *_, **__):
            return [dict(zip(("name", "who", "seconds"), holders.pop(0), strict=True))]

    with pytest.raises(EngineError, match=r"another trainer, runs/two, which renewed its claim"):
        asyncio.run(ServerLease(Workers(), "dapo-me", "runs/one").take(1.0, "default"))


def test_a_trainer_whose_claim_was_taken_sees_it_by_the_label(make, help):
    """Its own weights serve it until the other one publishes."""
    server, engine = make(heartbeat=0.05)
    server.worker.release_server(engine._name)
    server.worker.claim_server("dapo-other", "runs/two (process 7 on far)", 60.0)
    engine.submit(requests(help, 1))
    finish_under(drain(engine, 2), 1, 1)
    server.hold = True
    engine.submit(requests(help, 1))
    wait_for(lambda: len(server.generated) == 4)
    server.label = "dapo-other-1"
    with pytest.raises(EngineError, match=r"another trainer has published.*'dapo-other-1'.*--resume"):
        engine.poll()
    assert len(engine.abort()) == 2


# ---------------------------------------------------------------------- what is said of an outage


def test_an_outage_is_told_with_how_long_it_is_waited_for_and_again(make, help, caplog, monkeypatch):
    monkeypatch.setattr("dapo.engines.vllm_waiting.AGAIN", 0.05)
    server, engine = make(patience=600)
    server.hold = True
    engine.submit(requests(help, 1))
    wait_for(lambda: len(server.generated) == 2)
    server.kill()
    wait_for(lambda: caplog.text.count("waiting for the vLLM server") >= 3)
    first = next(line for line in caplog.messages if line.startswith("waiting for"))
    assert re.search(r"for up to (600|5\d\d) s more \(rollout\.server\.patience\): .*", first)
    server.hold = False
    server.start()
    finish_under(drain(engine, 2), 1, 1)


def test_a_server_that_accepts_and_says_nothing_is_told_too(make, help, caplog, monkeypatch):
    monkeypatch.setattr("dapo.engines.vllm_waiting.ANSWER", 0.2)
    server, engine = make(patience=600)
    silent, real = threading.Event(), server.answer

    def mute(path, full, body):
        if path == "/health":
            silent.wait(120)
        return real(path, full, body)

    server.answer, server.drops = mute, 1
    engine.submit(requests(help, 1, 1))
    wait_for(lambda: "/health: no answer within" in caplog.text)
    silent.set()
    finish_under(drain(engine, 1), 1, 1)


# ---------------------------------------------------------------------- lost requests


def test_lost_requests_go_before_those_that_wait_in_their_order_and_cost_no_look_at_the_queue(help, monkeypatch):
    from dapo.engines import roster

    pushes = []
    real = roster.heapq.heappush
    monkeypatch.setattr(roster.heapq, "heappush", lambda heap, entry: (pushes.append(1), real(heap, entry)))
    queue = Queue()
    waiting, lost, urgent = ([help.request(g, i) for i in range(400)] for g in range(3))
    for request in urgent:
        object.__setattr__(request, "priority", -1)
    for request in waiting:
        queue.push(request)
    queue.push_front(lost[200:])
    queue.push_front(lost[:200])
    for request in urgent:
        queue.push_front([request])
    assert len(pushes) == 3 * 400  # one for each request, however many wait
    order = [queue.pop().key for _ in range(1200)]
    assert order == [
        *((2, i) for i in reversed(range(400))),
        *((1, i) for i in range(400)),
        *((0, i) for i in range(400)),
    ]
