"""Servers that die, forget, stutter or are slow: every response ends once, under the published weights."""

from __future__ import annotations

import pytest
from server_parts import building, drain, finish_under, load, requests, wait_for
from stand_in_server import LOADED_AT_START

from dapo.engines.vllm_server import ServerEngine
from dapo.errors import EngineError
from dapo.types.enums import FinishReason

pytest.importorskip("aiohttp")


@pytest.fixture
def make(tmp_path):
    """Makes a server and an engine that has published version 1 (the number 1)."""
    with building(tmp_path) as build:
        yield build


def test_a_server_killed_in_the_middle_and_started_again(make, help, caplog):
    server, engine = make(slots=4)
    server.hold = True
    engine.submit(requests(help, 4))
    wait_for(lambda: len(server.generated) == 4)
    server.kill()
    wait_for(lambda: "waiting for the vLLM server" in caplog.text)
    server.hold = False
    server.start()
    finish_under(drain(engine, 8), 1, 1)
    assert engine._dispatcher.counts["restarts"] == 1
    assert [body["request_id"] for body in server.generated] == list(
        dict.fromkeys(b["request_id"] for b in server.generated)
    )


def test_a_restart_that_no_connection_noticed(make, help):
    """Tokens of the weights it started with come in, and must not pass."""
    server, engine = make()
    server.hold = True
    engine.submit(requests(help, 2))
    wait_for(lambda: len(server.generated) == 4)
    server.forget()
    server.hold = False
    events = drain(engine, 4)
    finish_under(events, 1, 1)
    assert LOADED_AT_START != 1


def test_a_restart_in_silence_is_noticed_by_the_heartbeat(make, help):
    server, engine = make(heartbeat=0.1)
    server.hold = True
    engine.submit(requests(help, 1, 2))
    wait_for(lambda: len(server.generated) == 2)
    server.forget()
    wait_for(lambda: len(server.generated) == 4)
    server.hold = False
    finish_under(drain(engine, 2), 1, 1)


def test_a_restart_between_two_requests(make, help):
    server, engine = make()
    server.kill()
    server.start()
    engine.submit(requests(help, 2))
    finish_under(drain(engine, 4), 1, 1)


def test_a_server_that_dies_within_a_publish_gets_the_new_weights_later(make, help):
    server, engine = make()
    real, died = server.answer, []

    def die_once(path, full, body):
        if path == "/collective_rpc" and body["method"] == "load_published" and not died:
            died.append(True)
            server.kill()
            server.start()
            raise ConnectionError("this answer goes nowhere")
        return real(path, full, body)

    server.answer = die_once
    load(engine, 2, 2)
    engine.submit(requests(help, 2))
    finish_under(drain(engine, 4), 2, 2)


def test_one_lost_connection_is_no_restart(make, help):
    server, engine = make()
    server.drops = 1
    engine.submit(requests(help, 3))
    finish_under(drain(engine, 6), 1, 1)
    assert server.loads == 1
    assert len(server.generated) == 6


def test_a_request_that_is_lost_again_and_again_fails_in_the_end(make, help, monkeypatch):
    monkeypatch.setattr("dapo.engines.vllm_dispatch._FIRST_PAUSE", 0.001)
    server, engine = make()
    server.drops = 100
    engine.submit(requests(help, 1, 1))
    event = drain(engine, 1)[(0, 0)]
    assert event.finish is FinishReason.FAILED
    assert "6 times" in event.reason


def test_an_abort_that_nobody_asked_for_is_sent_again(make, help):
    server, engine = make()
    server.unasked_aborts = 2
    engine.submit(requests(help, 2))
    finish_under(drain(engine, 4), 1, 1)


def test_an_ill_server_is_waited_for(make, help, caplog):
    server, engine = make(heartbeat=0.05)
    server.hold = True
    engine.submit(requests(help, 1, 2))
    wait_for(lambda: len(server.generated) == 2)
    server.ill = True
    wait_for(lambda: "/health answered 503" in caplog.text)
    server.ill = server.hold = False
    finish_under(drain(engine, 2), 1, 1)


def test_patience_ends_and_everything_comes_back(make, help):
    server, engine = make(patience=0.5, slots=2)
    server.hold = True
    engine.submit(requests(help, 3))
    wait_for(lambda: len(server.generated) == 2)
    server.kill()
    with pytest.raises(EngineError) as caught:
        engine.poll()
    text = str(caught.value)
    assert server.address in text
    assert "6 responses" in text
    assert "--resume" in text
    events = engine.abort()
    assert sorted(event.key for event in events) == [(g, i) for g in range(3) for i in range(2)]
    assert all(event.finish is None and len(event.token_ids) == 0 for event in events)
    with pytest.raises(EngineError):
        engine.submit(requests(help, 1))
    assert engine.abort() == []
    engine.close()


def test_abort_and_close_do_not_wait_for_a_dead_server(make, help, monkeypatch):
    monkeypatch.setattr("dapo.engines.vllm_dispatch._ABORT_PATIENCE", 0.3)
    server, engine = make(patience=600)
    server.hold = True
    engine.submit(requests(help, 2))
    wait_for(lambda: len(server.generated) == 4)
    server.kill()
    events = engine.abort()  # would take `patience`, and so the test's own limit, if it waited
    assert len(events) == 4
    assert {event.finish for event in events} == {None}
    engine.submit(requests(help, 2))
    engine.close()


def test_a_slow_server_is_slow_and_nothing_else(make, help):
    server, engine = make(heartbeat=0.05)
    server.delay = 0.3
    engine.submit(requests(help, 4, 4))
    finish_under(drain(engine, 16), 1, 1)
    assert len(server.generated) == 16
    assert server.loads == 1


def test_two_trainers_on_a_server_that_keeps_no_claims(make, help, tmp_path, caplog):
    """Without the extension the second one takes it over, and says so; the first sees whose the tokens are."""
    server, one = make(extension=False)
    two = ServerEngine(server.address, "runs/two", vocabulary=40, longest=60, patience=120.0)
    assert "holds weights of another trainer" in caplog.text
    load(two, 1, 7)
    one.submit(requests(help, 1))
    with pytest.raises(EngineError, match="another trainer"):
        one.poll()
    assert len(one.abort()) == 2
    two.submit(requests(help, 1))
    finish_under(drain(two, 2), 7, 1)
    two.close()


def test_a_lost_resume_does_not_leave_the_server_paused(make, help):
    server, engine = make()
    server.faults = [("/resume", 0)]
    load(engine, 2, 2)
    assert not server.paused
    engine.submit(requests(help, 1))
    finish_under(drain(engine, 2), 2, 2)
    assert server.loads == 2  # the weights were there


def test_a_server_that_stands_still_is_noticed_by_the_heartbeat(make, help):
    server, engine = make(heartbeat=0.1)
    server.paused = True
    engine.submit(requests(help, 1))
    finish_under(drain(engine, 2), 1, 1)


@pytest.mark.parametrize(("deaths", "finish"), [(5, FinishReason.LENGTH), (100, FinishReason.FAILED)])
def test_a_request_that_kills_the_server_again_and_again_fails_in_the_end(make, help, deaths, finish):
    server, engine = make()
    server.deadly = deaths
    engine.submit(requests(help, 1, 1))
    event = drain(engine, 1)[(0, 0)]
    assert event.finish is finish
    assert len(server.generated) == 6
    assert engine._dispatcher.counts["restarts"] == min(deaths, 6)
    if finish is FinishReason.FAILED:
        assert "died 6 times" in event.reason
    server.deadly = 0
    engine.submit(requests(help, 1, 1))
    finish_under(drain(engine, 1), 1, 1)


def test_deaths_of_the_server_are_forgotten_with_the_request(make, help):
    server, engine = make(slots=1)
    server.deadly, server.hold = 5, True  # it lives on in the sixth try, and is not answered
    engine.submit(requests(help, 1, 2))
    wait_for(lambda: engine._dispatcher.counts["restarts"] == 5 and len(server.generated) == 6)
    engine.abort()
    server.hold, server.deadly = False, 2
    engine.submit(requests(help, 1, 2))
    finish_under(drain(engine, 2), 1, 1)


def test_a_server_replaced_during_a_load_gets_the_weights(make, help):
    server, engine = make()
    real, replaced = server.answer, []

    def replace_once(path, full, body):
        if path == "/reset_prefix_cache" and not replaced:
            replaced.append(True)
            server.forget()
        return real(path, full, body)

    server.answer = replace_once
    load(engine, 2, 2)
    engine.submit(requests(help, 1))
    finish_under(drain(engine, 2), 2, 2)


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_a_busy_server_or_a_proxy_is_asked_again(make, help, status):
    server, engine = make()
    server.faults = [("/inference/v1/generate", status)]
    engine.submit(requests(help, 1))
    finish_under(drain(engine, 2), 1, 1)
    assert server.loads == 1


@pytest.mark.parametrize("route", ["/pause", "/collective_rpc", "/resume", "/weight_info"])
@pytest.mark.parametrize("status", [0, 429, 502])
def test_a_fault_on_the_way_is_no_refusal_of_the_weights(make, help, route, status):
    server, engine = make()
    server.faults = [(route, status)]
    load(engine, 2, 2)
    engine.submit(requests(help, 1))
    finish_under(drain(engine, 2), 2, 2)
    assert engine._dispatcher.counts["restarts"] == 0
