"""The engine for a vLLM server against a scripted stand-in: what is sent, what is believed, and what is never lost."""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from server_parts import building, drain, load, requests, wait_for
from stand_in_server import StandIn
from tickets import in_folder, to_tensors

from dapo.engines.vllm_server import ServerEngine
from dapo.errors import EngineError
from dapo.types.batch import Response, Ticket
from dapo.types.enums import FinishReason
from dapo.types.seeds import generator_seed

pytest.importorskip("aiohttp")


@pytest.fixture
def make(tmp_path):
    """Makes a server and an engine that has published version 1 (the number 1)."""
    with building(tmp_path) as build:
        yield build


def prompts(help, *_, **options):
    return help.request(0, prompt_ids=[3, 4, 5], **options)


def test_a_request_as_it_is_sent_and_a_response_as_it_comes_back(make, help):
    server, engine = make()
    prefix = Response(np.array([7, 8, 9]), np.zeros(3, np.float32), np.zeros(3, np.int32))
    request = prompts(help, prefix=prefix, max_tokens=10, temperature=0.7, top_p=0.9, top_k=5, stop_token_ids=(1,))
    engine.submit([request])
    event = drain(engine, 1)[(0, 0)]
    body = server.generated[0]
    assert body["token_ids"] == [3, 4, 5, 7, 8, 9]
    assert body["sampling_params"] == {
        "max_tokens": 7, "temperature": 0.7, "top_p": 0.9, "top_k": 5, "seed": generator_seed(request),
        "stop_token_ids": [1], "logprobs": 0, "ignore_eos": True, "detokenize": False,
    }  # fmt: skip
    assert body["priority"] == 0
    assert (event.token_ids.dtype, event.logprobs.dtype, event.versions.dtype) == (np.int64, np.float32, np.int32)
    assert len(event.token_ids) == 7
    assert event.finish is FinishReason.LENGTH
    assert event.logprobs.tolist() == [-1.0] * 7
    assert event.versions.tolist() == [1] * 7


def test_the_seed_behind_a_prefix_is_not_the_one_that_made_it(make, help):
    server, engine = make()
    prefix = Response(np.array([7]), np.zeros(1, np.float32), np.zeros(1, np.int32))
    engine.submit([prompts(help, seed=5), help.request(1, prompt_ids=[3, 4], seed=5, prefix=prefix)])
    drain(engine, 2)
    assert len({body["sampling_params"]["seed"] for body in server.generated}) == 2


def test_stop_token_is_included_and_prefixes_that_are_whole_are_not_sent(make, help):
    server, engine = make()
    engine.submit([help.request(0, prompt_ids=[3, 4], seed=1, stop_token_ids=(), max_tokens=9)])
    tokens = drain(engine, 1)[(0, 0)].token_ids
    stop = int(tokens[4])
    engine.submit([help.request(1, prompt_ids=[3, 4], seed=1, stop_token_ids=(stop,), max_tokens=9)])
    event = drain(engine, 1)[(1, 0)]
    assert event.finish is FinishReason.STOP
    assert event.token_ids.tolist() == tokens[: tokens.tolist().index(stop) + 1].tolist()
    whole = Response(event.token_ids, event.logprobs, event.versions)
    engine.submit([help.request(2, prompt_ids=[3, 4], stop_token_ids=(stop,), prefix=whole, max_tokens=30)])
    assert drain(engine, 1)[(2, 0)].finish is FinishReason.STOP
    assert len(server.generated) == 2


@pytest.mark.parametrize("priority", [True, False])
def test_priority_is_sent_where_the_server_takes_one_and_decides_who_waits(make, help, priority):
    server, engine = make(priority=priority, slots=1)
    server.hold = True
    one, two, three = (help.request(g, prompt_ids=[3, 4]) for g in range(3))
    object.__setattr__(three, "priority", -1)
    engine.submit([one, two, three])
    server.hold = False
    drain(engine, 3)
    assert [body["sampling_params"]["seed"] for body in server.generated] == [
        generator_seed(request) for request in (three, one, two)
    ]
    assert [body.get("priority") for body in server.generated] == ([-1, 0, 0] if priority else [None] * 3)


def test_no_more_than_slots_are_at_the_server_at_once(make, help):
    server, engine = make(slots=4)
    server.hold = True
    engine.submit(requests(help, 5))
    wait_for(lambda: len(server.generated) == 4)
    assert engine.poll(0.1) == []
    assert len(server.generated) == 4
    server.hold = False
    drain(engine, 10)
    stats = engine.stats()
    assert stats["generated_tokens"] == 80 == stats["busy_slot_steps"]
    assert 20 <= stats["decode_steps"] <= 60
    assert stats["slot_steps"] == 4 * stats["decode_steps"] >= stats["busy_slot_steps"]
    assert stats["prefill_tokens"] == sum(len(body["token_ids"]) for body in server.generated)


def test_what_the_server_had_computed_is_no_prefill_and_neither_is_what_never_ran(make, help):
    server, engine = make(slots=2)
    server.cached = 2
    engine.submit([help.request(g, prompt_ids=[3, 4, 5, 6, 7], max_tokens=4) for g in range(3)])
    drain(engine, 3)
    assert engine.stats()["prefill_tokens"] == 3 * (5 - 2)
    server.hold, server.partial = True, 0
    engine.submit([help.request(g, prompt_ids=[3, 4, 5], max_tokens=4) for g in range(3)])
    wait_for(lambda: len(server.generated) == 5)
    assert len(engine.abort()) == 3
    assert engine.stats()["prefill_tokens"] == 3 * (5 - 2)


def test_the_clock_grows_with_every_poll_that_returns_something(make, help):
    server, engine = make()
    seen = [engine.clock]
    for group in range(6):
        if group > 2:  # a response without a token says nothing new of the steps
            server.answers = [(500, {})]
        engine.submit([help.request(group, prompt_ids=[3, 4], max_tokens=8)])
        (event,) = engine.poll()
        assert isinstance(event.tick, int)
        assert event.tick <= engine.clock
        seen.append(engine.clock)
    assert seen == sorted(set(seen))


def test_poll_waits_as_long_as_it_is_told(make, help):
    server, engine = make()
    assert engine.poll() == []
    server.hold = True
    engine.submit(requests(help, 1, 1))
    assert engine.poll(0.01) == []  # long before the response ends
    came = []
    waiting = threading.Thread(target=lambda: came.extend(engine.poll()))
    waiting.start()
    assert engine._dispatcher.unfinished == 1
    assert not came
    server.hold = False
    waiting.join()
    assert len(came) == 1


def test_abort_returns_what_there_is_of_each(make, help):
    server, engine = make(slots=3)
    engine.submit([help.request(9, prompt_ids=[3, 4], max_tokens=4, stop_token_ids=())])
    wait_for(lambda: engine._dispatcher.ended)
    server.hold = True
    engine.submit(requests(help, 3))
    wait_for(lambda: len(server.generated) == 4)
    named = engine.abort([(0, 0), (2, 1), (77, 0)])
    assert [(event.key, len(event.token_ids)) for event in named] == [((0, 0), 2), ((2, 1), 0)]
    rest = {event.key: event for event in engine.abort()}
    assert rest.pop((9, 0)).finish is FinishReason.LENGTH
    assert {event.finish for event in rest.values()} == {None}
    assert sorted(rest) == [(0, 1), (1, 0), (1, 1), (2, 0)]
    assert sum(len(event.token_ids) for event in rest.values()) == 2 * 3
    assert all(event.versions.tolist() == [1] * len(event.token_ids) for event in rest.values())
    server.hold = False
    assert engine.poll() == []
    engine.submit(requests(help, 3))  # nothing is known of them any more
    drain(engine, 6)


def test_an_abort_that_overtakes_its_request_is_repeated(make, help):
    server, engine = make()
    server.hold = True
    engine.submit(requests(help, 1, 1))
    wait_for(lambda: server.generated)
    real, calls = server.answer, []

    def deaf_at_first(path, full, body):
        calls.append(path)
        return (200, {}) if path.endswith("abort_requests") and calls.count(path) == 1 else real(path, full, body)

    server.answer = deaf_at_first
    assert [len(event.token_ids) for event in engine.abort()] == [2]


@pytest.mark.parametrize("number", [-9999.0, None])
def test_numbers_that_are_none_end_a_response_as_failed(make, help, number):
    server, engine = make()
    server.logprob = number if number is not None else float("nan")
    engine.submit(requests(help, 1, 1))
    event = drain(engine, 1)[(0, 0)]
    assert event.finish is FinishReason.FAILED
    assert len(event.token_ids) == len(event.logprobs) == len(event.versions) == 3
    assert "finite" in event.reason


def test_a_refused_request_is_named_and_comes_back_from_abort(make, help):
    server, engine = make()
    server.answers = [(400, {"error": {"message": "no such thing"}})]
    engine.submit(requests(help, 1, 1))
    with pytest.raises(EngineError, match=r"request \(0, 0\).*refused.*400: no such thing"):
        engine.poll()
    assert [event.finish for event in engine.abort()] == [None]
    assert engine.poll() == []


def test_an_error_of_a_healthy_server_fails_one_response(make, help):
    server, engine = make()
    server.answers = [(500, {"error": {"message": "out of luck"}})]
    engine.submit(requests(help, 1, 2))
    events = drain(engine, 2)
    failed = [event for event in events.values() if event.finish is FinishReason.FAILED]
    assert len(failed) == 1
    assert "out of luck" in failed[0].reason


def test_an_error_of_a_server_that_forgot_its_weights_fails_none(make, help):
    server, engine = make()
    server.answers = [(500, {"error": {"message": "engine dead"}})]
    server.forget()
    engine.submit(requests(help, 1, 2))
    events = drain(engine, 2)
    assert {event.finish for event in events.values()} == {FinishReason.LENGTH}
    assert {value for event in events.values() for value in event.logprobs.tolist()} == {-1.0}


# ---------------------------------------------------------------------- weights


def test_every_publish_reaches_the_server(make, help):
    server, engine = make()
    for time, version in enumerate((2, 2, 3)):  # the same version may come twice, with other weights
        load(engine, version, 10 * version + time)
        engine.submit(requests(help, 1, 1))
        event = drain(engine, 1)[(0, 0)]
        assert event.versions.tolist() == [version] * 8
        assert event.logprobs.tolist() == [-float(10 * version + time)] * 8
    assert not server.paused


def test_responses_under_way_need_abort_or_keep(make, help):
    server, engine = make()
    server.hold = True
    engine.submit(requests(help, 1, 1))
    wait_for(lambda: server.generated)
    with pytest.raises(EngineError, match="1 responses are unfinished"):
        load(engine, 2, 2)
    load(engine, 2, 2, in_flight="keep")
    server.hold = False
    event = drain(engine, 1)[(0, 0)]
    assert event.versions.tolist() == [1, 1] + [2] * 6
    assert event.logprobs.tolist() == [-1.0, -1.0] + [-2.0] * 6
    prompt = len(requests(help, 1, 1)[0].prompt_ids)
    assert engine.stats()["prefill_tokens"] == prompt + (prompt + 2)  # at its start, and when the weights changed
    paths = [path for path in server.order if path.startswith(("/pause", "/coll", "/reset", "/resume"))][-4:]
    assert paths == [
        "/pause?mode=keep",
        "/collective_rpc",
        "/reset_prefix_cache?reset_running_requests=true",
        "/resume",
    ]


def test_without_our_extension_the_servers_own_reload_is_used_and_remembered(make, help, caplog):
    server, engine = make(extension=False)
    load(engine, 2, 2)
    engine.submit(requests(help, 1, 1))
    assert drain(engine, 1)[(0, 0)].logprobs[0] == -2.0
    assert server.loads == 2
    assert caplog.text.count("worker-extension-cls") == 1


def test_a_load_that_fails_says_what_to_look_at_and_resumes(make):
    server, engine = make(published=None, blind=True)
    with pytest.raises(EngineError, match=r"no such folder.*same path"):
        load(engine, 1, 1)
    assert not server.paused
    assert server.label.endswith("unfinished")


def test_nothing_is_sent_before_the_first_publish(make, help):
    _, engine = make(published=None)
    with pytest.raises(EngineError, match="publish first"):
        engine.submit(requests(help, 1, 1))


def test_nothing_is_loaded_after_close(make, tmp_path):
    _, engine = make()
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        engine.load(in_folder(2, [], tmp_path / "weights"))


def test_a_ticket_that_does_not_lead_to_a_server_is_refused_by_name(make, tmp_path):
    server, engine = make()
    with pytest.raises(EngineError, match="version 2 come by route 'shared'; this engine takes 'folder'"):
        engine.load(to_tensors(2, []))
    with pytest.raises(EngineError, match=r"version 2 cannot be loaded: .*gone.* is not there"):
        engine.load(Ticket(2, "folder", str(tmp_path / "gone"), ()))
    assert engine.version == 1
    assert server.loads == 1


# ---------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"dev": False}, "VLLM_SERVER_DEV_MODE=1"),
        ({"scale_out": False}, "--enable-scale-out"),
        ({"raw": -0.4}, "-0.4.* instead of 0 each; .*--logprobs-mode processed_logprobs"),
        ({"context": 59}, "takes 59 tokens.*needs 60.*--max-model-len 60"),
        ({"rows": 39}, "out of vocabulary.* sent token 39.*vocabulary of 40.*model.path"),
        ({"key": "secret"}, "401.*api_key_variable"),
    ],
)
def test_servers_that_cannot_serve_are_refused_at_the_start(make, options, says):
    with pytest.raises(EngineError) as caught:
        make(**options)
    assert re.search(says, str(caught.value))


def test_no_server_at_all(tmp_path):
    with pytest.raises(EngineError, match=r"no vLLM server answered at http://127.0.0.1:9 .*start it"):
        ServerEngine("http://127.0.0.1:9", "runs/one", vocabulary=40, longest=60, patience=0.3)


@pytest.mark.whole
def test_whoever_waits_for_a_server_is_told_so(tmp_path, caplog):
    server = StandIn()
    server.ill = True
    with caplog.at_level("WARNING"), ThreadPoolExecutor(1) as other:
        engine = other.submit(ServerEngine, server.address, "runs/one", vocabulary=40, longest=60, patience=600.0)
        wait_for(lambda: server.routes["/health"] > 1 and caplog.records)
        server.ill = False
        engine.result().close()
    (told,) = [record.getMessage() for record in caplog.records]
    assert re.match(
        rf"waiting for the vLLM server at {server.address}, for up to (600|5\d\d) s more \(rollout.server", told
    )
    server.kill()


def test_something_else_at_the_address_is_refused_at_once(tmp_path):
    server = StandIn()
    with pytest.raises(EngineError, match=r"is no vLLM server \(/health answered 404"):
        ServerEngine(f"{server.address}/v1", "runs/one", vocabulary=40, longest=60, patience=30.0)
    server.kill()


def test_the_key_is_sent(make, help):
    _, engine = make(key="secret", api_key="secret")
    engine.submit(requests(help, 1, 1))
    assert drain(engine, 1).keys() == {(0, 0)}


def test_a_server_left_paused_is_resumed(tmp_path, help):
    server = StandIn()
    server.paused = True
    engine = ServerEngine(server.address, "runs/one", vocabulary=40, longest=60, patience=120.0)
    assert not server.paused
    engine.close()
    server.kill()


def test_requests_that_do_not_fit(make, help):
    _, engine = make()
    with pytest.raises(EngineError, match="submitted twice"):
        engine.submit([*requests(help, 1, 1), *requests(help, 1, 1)])
    with pytest.raises(EngineError, match="vocabulary"):
        engine.submit([help.request(0, prompt_ids=[40])])
    with pytest.raises(EngineError, match="positions"):
        engine.submit([help.request(0, max_tokens=64)])
    assert engine.poll() == []
    engine.close()
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        engine.poll()
