"""The engine for a vLLM server against a real one: numbers, weights, and what happens when it dies."""

from __future__ import annotations

import asyncio
import copy
import threading
from contextlib import suppress

import numpy as np
import pytest
from server_process import LONGEST, PATIENCE, Server
from thinking_parts import check_thinking
from vllm_parts import Published, next_logits, partial_of, perturbed, request, true_logprobs

from dapo.engines.stops import StopStrings
from dapo.engines.vllm_server import ServerEngine
from dapo.errors import EngineError
from dapo.models.load import load_model
from dapo.models.tiny import make_tiny_model
from dapo.types.enums import FinishReason

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(2000)]
pytest.importorskip("vllm")
pytest.importorskip("aiohttp")

ROWS, CLOSE = 1024, 1e-4
LONG = 900  # tokens: enough for something to happen meanwhile, even to a server on a busy machine


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Llama with a tied head of 1024 rows, which the CPU build packs; do not change its weights."""
    folder = make_tiny_model(tmp_path_factory.mktemp("model"), "llama", heads=2, vocabulary=ROWS)
    return load_model(str(folder), device="cpu")


@pytest.fixture(scope="module")
def server(model, tmp_path_factory):
    one = Server(model.name, tmp_path_factory.mktemp("server"))
    one.start()
    one.wait()
    yield one
    one.kill()


@pytest.fixture
def make(server, model, tmp_path):
    engines = []

    def build(address=None, **options):
        server.wait()  # a test may have left it at its start
        options = {"patience": PATIENCE, "heartbeat": 1.0} | options
        address = address or server.address
        engine = ServerEngine(address, "runs/one", vocabulary=ROWS, longest=LONGEST, **options)
        engines.append(engine)
        engine.load(Published(model.model).ticket(1, tmp_path))
        return engine

    yield build
    for engine in engines:
        engine.close()


def prompt(group):
    return np.random.default_rng(group).integers(2, ROWS, 5 + 7 * (group % 8))


def ask(group, index=0, **options):
    return request((group, index), prompt(group), **{"seed": 100 * group + index, "stop_token_ids": ()} | options)


def collect(engine, count):
    """``count`` events by key; none ends twice, none is left."""
    events = []
    while len(events) < count:
        came = engine.poll()
        assert came, f"{len(events)} of {count} came"
        events += came
    assert engine.poll() == []
    assert len({event.key for event in events}) == len(events) == count
    return {event.key: event for event in events}


def gap(model, event, before=(), temperature=0.7):
    """Largest difference of the event's log-probabilities from Hugging Face's, behind prompt and ``before``."""
    start = np.concatenate([prompt(event.key[0]), np.asarray(before, dtype=np.int64)])
    true = true_logprobs(model, start, event.token_ids, temperature)
    return float(np.abs(true - event.logprobs).max(initial=0.0))


def other(model, seed):
    changed = copy.deepcopy(model)
    perturbed(changed, seed)
    return changed


def under_way(engine, groups):
    """Submit two long responses for each group and return when those that have slots have tokens."""
    first = ask(99, max_tokens=20, priority=-1)
    engine.submit([first, *(ask(group, index, max_tokens=LONG) for group in range(groups) for index in range(2))])
    assert [event.key for event in engine.poll()] == [first.key]
    return 2 * groups


def test_logprobs_fresh_and_behind_a_prefix(make, model):
    engine = make()
    engine.submit([ask(group, index, max_tokens=40) for group in range(8) for index in range(4)])
    events = collect(engine, 32)
    assert max(gap(model, event) for event in events.values()) < CLOSE
    assert {event.finish for event in events.values()} == {FinishReason.LENGTH}
    assert {len(event.token_ids) for event in events.values()} == {40}
    assert all((event.versions == 1).all() for event in events.values())
    engine.submit([ask(*key, max_tokens=70, prefix=partial_of(event)) for key, event in events.items()])
    more = collect(engine, 32)
    assert {len(event.token_ids) for event in more.values()} == {30}
    assert max(gap(model, event, events[key].token_ids) for key, event in more.items()) < CLOSE


def test_truncated_and_greedy_sampling(make, model):
    engine = make()
    engine.submit([ask(group, max_tokens=20, temperature=0.7, top_k=1) for group in range(4)])
    for event in collect(engine, 4).values():
        assert np.abs(event.logprobs).max() == 0.0  # of what was sampled from: one token was possible
    engine.submit([ask(group, 1, max_tokens=20, temperature=0.0) for group in range(4)])
    for event in collect(engine, 4).values():
        start = prompt(event.key[0])
        for t in range(5):
            logits = next_logits(model, np.concatenate([start, event.token_ids[:t]]))
            assert event.token_ids[t] == int(logits.argmax())


def test_seeds_decide(make):
    engine = make()
    engine.submit([ask(1, 0, seed=5), ask(1, 1, seed=6), ask(1, 2, seed=5), *(ask(group) for group in range(2, 20))])
    events = collect(engine, 21)
    assert events[1, 0].token_ids.tolist() == events[1, 2].token_ids.tolist() != events[1, 1].token_ids.tolist()
    engine.submit([ask(1, 0, seed=5)])  # alone now
    assert collect(engine, 1)[1, 0].token_ids.tolist() == events[1, 0].token_ids.tolist()
    first = partial_of(events[1, 0])
    engine.submit([ask(1, 0, seed=5, prefix=first, max_tokens=48)])
    assert collect(engine, 1)[1, 0].token_ids.tolist() != events[1, 0].token_ids.tolist()


def test_stop_tokens(make):
    engine = make()
    engine.submit([ask(3)])
    tokens = collect(engine, 1)[3, 0].token_ids
    stop = int(tokens[10])
    engine.submit([ask(3, stop_token_ids=(stop, 1))])
    event = collect(engine, 1)[3, 0]
    assert event.finish is FinishReason.STOP
    assert event.token_ids.tolist() == tokens[: tokens.tolist().index(stop) + 1].tolist()


def test_stop_strings(make, model):
    """Told of them, the server ends where every engine does: with the token that completes one."""
    engine = make(strings=StopStrings(model.tokenizer))
    engine.submit([ask(3)])
    tokens = collect(engine, 1)[3, 0].token_ids.tolist()
    texts = [model.tokenizer.decode(tokens[:count], skip_special_tokens=True) for count in range(len(tokens) + 1)]
    end, stop = next(
        (end, string)
        for end in range(5, len(tokens))
        if (string := texts[end][len(texts[end - 1]) - 1 : len(texts[end - 1]) + 2]) not in texts[end - 1]
    )
    engine.submit([ask(3, stop=(stop,)), ask(4, stop=("no such text",))])
    events = collect(engine, 2)
    assert (events[3, 0].finish, events[4, 0].finish) == (FinishReason.STOP, FinishReason.LENGTH)
    assert events[3, 0].token_ids.tolist() == tokens[:end]


def test_thinking_that_its_budget_closes(make, model):
    """Two requests for the server: up to the budget, and on behind the forced tokens."""
    engine = make()
    check_thinking(engine, model, engine.version, CLOSE)


def test_abort_gives_partial_tokens_that_can_be_continued(make, model):
    engine = make(slots=8)
    count = under_way(engine, 6)
    events = {event.key: event for event in engine.abort()}
    assert len(events) == count
    assert {event.finish for event in events.values()} <= {None}
    lengths = [len(event.token_ids) for event in events.values()]
    assert 4 <= lengths.count(0) <= 5  # those that had no slot, or got one just now
    assert 0 < max(lengths) < LONG
    assert engine.poll() == []
    engine.submit([ask(*key, max_tokens=LONG, prefix=partial_of(event)) for key, event in events.items()])
    for key, event in collect(engine, count).items():
        made = events[key].token_ids
        assert len(made) + len(event.token_ids) == LONG
        assert gap(model, events[key]) < CLOSE
        assert gap(model, event, made) < CLOSE


def test_publish(make, model, tmp_path):
    engine = make()
    for version in (2, 3):
        changed = other(model, version)
        engine.load(Published(changed.model).ticket(version, tmp_path))
        engine.submit([ask(group, max_tokens=30) for group in range(8)])  # the same prompts: nothing cached may serve
        events = collect(engine, 8)
        assert max(gap(changed, event) for event in events.values()) < CLOSE
        assert min(gap(model, event) for event in events.values()) > 0.1
        assert all((event.versions == version).all() for event in events.values())


def test_publish_while_responses_are_under_way(make, model, tmp_path):
    engine, changed = make(), other(model, 2)
    count = under_way(engine, 4)
    with pytest.raises(EngineError, match="unfinished"):
        engine.load(Published(changed.model).ticket(2, tmp_path))
    engine.load(Published(changed.model).ticket(2, tmp_path), in_flight="keep")
    events = collect(engine, count).values()
    old, new = [event.versions == 1 for event in events], [event.versions == 2 for event in events]
    assert sum(map(np.sum, old)) > 50
    assert sum(map(np.sum, new)) > 50
    assert sum(before.any() and after.any() for before, after in zip(old, new, strict=True)) > 4
    for event, before, after in zip(events, old, new, strict=True):
        assert (before | after).all()
        assert (np.diff(event.versions) >= 0).all()
        for weights, chosen in ((model, before), (changed, after)):
            true = true_logprobs(weights, prompt(event.key[0]), event.token_ids, 0.7)
            assert np.abs(true - event.logprobs)[chosen].max(initial=0.0) < CLOSE


class Slow:
    """A proxy that holds back whatever the server says, and counts what it is asked."""

    def __init__(self, port, seconds):
        self.target, self.seconds, self.asked = port, seconds, 0
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        serving = asyncio.start_server(self.serve, "127.0.0.1", 0)
        self.server = asyncio.run_coroutine_threadsafe(serving, self.loop).result()
        self.address = f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}"

    async def serve(self, reader, writer):
        theirs, ours = await asyncio.open_connection("127.0.0.1", self.target)
        await asyncio.gather(self.pump(reader, ours, 0.0), self.pump(theirs, writer, self.seconds))

    async def pump(self, source, sink, seconds):
        with suppress(ConnectionError):
            while data := await source.read(65536):
                self.asked += data.count(b"POST /inference/v1/generate")
                await asyncio.sleep(seconds)
                sink.write(data)
                await sink.drain()
        sink.close()


def test_a_slow_server_is_waited_for_and_asked_once(make, model, server):
    proxy = Slow(server.port, 0.4)
    engine = make(proxy.address, heartbeat=0.2, slots=8)
    before = proxy.asked
    engine.submit([ask(group, max_tokens=30) for group in range(24)])
    events = collect(engine, 24)
    assert max(gap(model, event) for event in events.values()) < CLOSE
    assert proxy.asked - before == 24
    engine.submit([ask(group, max_tokens=LONG) for group in range(8)])
    assert len(engine.abort()) == 8


def test_a_server_killed_and_started_again_gets_the_published_weights(make, model, server, tmp_path):
    engine, changed = make(slots=8), other(model, 2)
    engine.load(Published(changed.model).ticket(2, tmp_path))
    count = under_way(engine, 6)
    server.kill()
    server.start()
    events = collect(engine, count)
    assert max(gap(changed, event) for event in events.values()) < CLOSE
    assert {len(event.token_ids) for event in events.values()} == {LONG}
    assert all((event.versions == 2).all() for event in events.values())


@pytest.mark.parametrize(
    ("layers", "said"),
    [(1, r"tensors for which nothing was published \(model\.layers\.1\."), (3, "it was started with")],
)
def test_a_server_of_another_model_is_refused_at_the_first_publish(make, server, tmp_path, layers, said):
    """By its checksums, or by its loader, which leaves it broken."""
    engine = make()
    folder = make_tiny_model(tmp_path / "other", "llama", heads=2, vocabulary=ROWS, layers=layers)
    other = load_model(str(folder), device="cpu")

    def publish():
        engine.load(Published(other.model).ticket(2, tmp_path))
        engine.checksums()

    with pytest.raises(EngineError, match=said):
        publish()
    server.kill()
    server.start()


def test_a_server_killed_for_good(make, server, model):
    engine = make(patience=2.0)
    count = under_way(engine, 6)
    server.kill()
    with pytest.raises(EngineError, match=rf"{server.address} did not answer for 2 s.*{count} responses.*--resume"):
        collect(engine, count)
    events = engine.abort()
    assert len(events) == count
    assert all(event.finish is None and len(event.token_ids) == 0 for event in events)
    engine.close()
