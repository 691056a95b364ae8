"""Agents over the endpoint, in the mailbox: which rows they make, and what bad ones cost."""

from __future__ import annotations

import asyncio
import json
import os
import select
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from aiohttp import ClientSession
from episode_requests import PROMPT, STOPS, drain, requests
from number_engine import NumberEngine, Numbers, ticket
from players import FreshWordSpeech, WordSpeech
from quick import quick

from dapo.environments.chat_requests import BadRequest, Sampling, read_request
from dapo.environments.endpoint import Endpoint
from dapo.environments.pool import EnvironmentPool
from dapo.environments.worker import Load
from dapo.errors import RecipeError
from dapo.loop.sampling.episode import Limits
from dapo.loop.sampling.episodes import Episodes
from dapo.loop.sampling.rollouts import Rollouts, Texts
from dapo.types.batch import MODEL, Response
from dapo.types.codec import from_tree, to_tree
from dapo.types.enums import FinishReason
from dapo.types.row_parts import parts_of

PROGRAM = """
import json, os, sys, urllib.request
record = json.load(sys.stdin)
assert record["answer"] == "7"
body = json.dumps({"messages": [{"role": "user", "content": "w5 w6"}]}).encode()
head = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
where = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
urllib.request.urlopen(urllib.request.Request(where, body, head)).read()
print("some words")
"""


@pytest.fixture
def mailbox():
    pools = []

    def make(agent, *, args=None, timeout=20.0, slots=8, speech=WordSpeech, lag=2, max_turns=8, sampling=None):
        what = agent if isinstance(agent, tuple) else f"agents_for_tests:{agent}"
        loaded = Load(None, args or {}, (), "none", timeout, 8, False, agent=what, sampling=sampling)
        pool = EnvironmentPool(loaded, memory_mib=2048)
        pools.append(pool)
        pool.start()
        engine = NumberEngine(slots)
        engine.load(ticket(3))
        texts = Texts(lambda rows: [Numbers.decode(row.tolist()) for row in rows])
        limits = Limits(max_turns=max_turns, max_turn_tokens=12, most_tokens=300)
        return Rollouts(engine, None, texts, Episodes(pool, speech(), texts, limits, lag=lag, read_scores=["accuracy"]))

    yield make
    for pool in pools:
        pool.close()


def played(mailbox, agent, count=4, **how):
    """The responses of some episodes, none of which failed."""
    found = drain(mailbox(agent, **how), requests(count, limit=200))
    for response in found.values():
        assert response.reason is None
        assert response.ended == "done"
        assert response.scores == {"accuracy": 1.0}
        assert response.new_tokens == response.model_tokens
    return [found[n] for n in sorted(found)]


def shown(made):
    """The rows of an episode as (prompt, tokens)."""
    return [
        (part.prompt_ids.tolist(), made.token_ids[part.first : part.stop].tolist()) for part in parts_of(made.turns)
    ]


@pytest.mark.whole
@pytest.mark.parametrize("agent", ["chain", "waits"])
def test_64_agents_at_once_whose_conversations_grow_make_one_row_each(mailbox, agent):
    for made in played(mailbox, agent, count=64, slots=16):
        ((prompt, tokens),) = shown(made)
        own = [turn for turn in made.turns if turn.who == MODEL]
        assert prompt == [5, 6]
        assert len(own) == 3
        replies = [made.token_ids[a.stop : b.first].tolist() for a, b in pairwise(own)]
        assert replies == [[7, 9], [8, 9]]
        assert tokens == made.token_ids.tolist()
        assert made.generated.tolist() == [any(t.first <= n < t.stop for t in own) for n in range(len(made))]


def test_what_the_model_is_given_to_read_is_counted_once(mailbox):
    """The problem that an agent asks first is the group's prompt."""
    subject = mailbox("chain")
    drain(subject, requests(3, limit=200))
    assert subject.episodes.given == 3 * (2 + 2 + 2)  # prompt and two replies


def test_a_history_that_no_row_continues_begins_a_row(mailbox):
    """Its prompt has the tokens as they were sampled, where the conversation continues what was said."""
    for made in played(mailbox, "others"):
        one, two, three, four, five = (
            made.token_ids[turn.first : turn.stop].tolist() for turn in made.turns if turn.who == MODEL
        )
        assert shown(made) == [
            ([5, 6], [*one, 9, *two]),
            ([5, 6, *words(one), 11], three),
            ([5, 6, *one, 9, *two, 10], four),
            ([12, 13], five),
        ]


def words(ids):
    """What a conversation that is written afresh has of a turn: its text, without the stop token."""
    return ids[:-1] if ids[-1] in STOPS else ids


def test_rows_by_turn_begin_with_each_request(mailbox):
    for made in played(mailbox, "chain", speech=FreshWordSpeech):
        assert len(shown(made)) == 3


def test_a_client_that_repeats_itself_gets_another_turn_in_a_row_of_its_own(mailbox):
    for made in played(mailbox, "repeats"):
        rows = shown(made)
        assert [prompt for prompt, _ in rows] == [[5, 6], [5, 6]]


def test_the_second_of_two_rows_with_one_prompt_goes_on(mailbox):
    for made in played(mailbox, "continues_the_second"):
        one, two, three = (made.token_ids[turn.first : turn.stop].tolist() for turn in made.turns if turn.who == MODEL)
        assert shown(made) == [([5, 6], one), ([5, 6], [*two, 9, *three])]


def test_a_client_that_hangs_up_and_asks_again_gets_the_turn_that_was_made_for_it(mailbox):
    for made in played(mailbox, "hangs_up"):
        rows = shown(made)
        assert len(rows) <= 4
        assert any(len(tokens) > 2 and 9 in tokens for _, tokens in rows)


@pytest.mark.parametrize(
    "agent",
    quick(
        ["parallel", "refused", "streams", "keeps_connection", "halves", "floods", "odd_json"],
        ["parallel", "odd_json"],
    ),
)
def test_clients_are_served_or_refused_with_a_reason(mailbox, agent):
    played(mailbox, agent)


def test_a_key_is_refused_once_its_episode_is_over(mailbox):
    box = mailbox("wrong_keys")
    for _ in range(3):  # one after the other, since an episode is over only when its end is read
        (response,) = drain(box, requests(1, limit=200)).values()
        assert response.scores == {"accuracy": 1.0}


RECIPE = {"temperature": 1.0, "top_p": 0.9, "top_k": 0, "min_p": 0, "repetition_penalty": 1, "seed": 4, "stop": ["END"]}


def test_a_request_may_name_the_sampling_of_the_recipe(mailbox):
    played(mailbox, "equal", sampling=Sampling(RECIPE))


@pytest.mark.parametrize(("ignore", "answered"), [(False, 0.0), (True, 5 / 6)])  # two answers are not one
def test_other_sampling_is_refused_or_ignored_as_the_recipe_says(mailbox, ignore, answered):
    (done,) = drain(mailbox("other_sampling", sampling=Sampling(RECIPE, ignore)), requests(1, limit=200)).values()
    assert done.scores == {"accuracy": answered}


@pytest.mark.parametrize(("name", "value"), [("seed", 5), ("temperature", True), ("logprobs", True), ("min_p", 0.1)])
def test_a_refusal_names_the_parameter_and_what_is_ignored_is_said_once(name, value, capsys):
    body = json.dumps({"messages": [{"role": "user", "content": "x"}], name: value}).encode()
    with pytest.raises(BadRequest, match=f"`{name}: "):
        read_request(body, Sampling(RECIPE))
    ignoring = Sampling(RECIPE, True)
    assert read_request(body, ignoring) == read_request(body, ignoring)
    assert capsys.readouterr().err.count(f"`{name}: ") == 1


@pytest.mark.whole
def test_64_agents_at_once_that_abuse_the_endpoint_are_served(mailbox):
    played(mailbox, "abuses", count=64, slots=16, timeout=200.0)


@pytest.mark.parametrize(
    ("method", "path", "size", "status"),
    [("POST", "/responses", 2, 404), ("GET", "/chat/completions", 0, 405), ("POST", "/chat/completions", 1 << 23, 413)],
)
def test_what_is_not_served_is_refused_in_the_form_of_the_api_with_what_is(method, path, size, status):
    async def ask():
        endpoint = Endpoint()
        await endpoint.start()
        head = {"Authorization": f"Bearer {endpoint.open().key}"}
        asked = {"method": method, "url": endpoint.base_url + path, "data": b" " * size, "headers": head}
        async with ClientSession() as client, client.request(**asked) as answer:
            return answer.status, await answer.json()

    found, body = asyncio.run(ask())
    assert found == status
    assert "POST /v1/chat/completions" in body["error"]["message"]


def test_a_limit_of_turns_refuses_what_comes_and_takes_the_last_score(mailbox):
    for response in drain(mailbox("goes_on", max_turns=3), requests(4, limit=200)).values():
        assert response.ended == "turns"
        assert response.scores == {"accuracy": 0.25}
        assert sum(turn.who == MODEL for turn in response.turns) == 3


@pytest.mark.whole
def test_last_words_that_do_not_come_end_an_episode_at_its_limit_also_where_calls_have_less_time_than_these(mailbox):
    for response in drain(mailbox("overruns", max_turns=1, timeout=3.0), requests(4, limit=200)).values():
        assert (response.ended, response.scores, response.reason) == ("turns", {}, None)


@pytest.mark.whole
@pytest.mark.parametrize(
    ("agent", "reason"),
    [
        ("raises", "exception: ValueError: bad tool"),
        ("sleeps", "timeout: no answer within 0.5 s"),
        ("never_asks", "reply: done, reward or facts before the model spoke"),
        ("returns_text", "exception: TypeError: the agent returned str"),
    ],
)
def test_an_agent_that_fails_costs_one_response(mailbox, agent, reason):
    found = drain(mailbox(agent, timeout=0.5), requests(4, limit=200))
    for response in found.values():
        assert response.finish is FinishReason.FAILED
        assert response.reason.startswith(f"environment: {reason}")


@pytest.mark.parametrize(
    ("more", "scores", "reason"),
    [
        ("print(1)", {"accuracy": 1.0}, None),
        pytest.param("print(json.dumps({'accuracy': 0.5}))", {"accuracy": 0.5}, None, marks=pytest.mark.whole),
        pytest.param("print('good')", {}, "exception: AgentFailed: the last line of", marks=pytest.mark.whole),
        ("sys.exit('no luck')", {}, "exception: AgentFailed:"),
        pytest.param("print('y' * 1_000_000); print(1)", {"accuracy": 1.0}, None, marks=pytest.mark.whole),
    ],
)
def test_a_program_plays_too(mailbox, tmp_path, more, scores, reason):
    (tmp_path / "agent.py").write_text(PROGRAM + more)
    found = drain(mailbox((sys.executable, str(tmp_path / "agent.py"))), requests(2, limit=200))
    for response in found.values():
        assert response.scores == scores
        assert (response.reason is None) if reason is None else response.reason.startswith(f"environment: {reason}")


@pytest.mark.whole
@pytest.mark.parametrize(("where", "name"), [("stdout", "output"), ("stderr", "errors")])
def test_a_program_that_floods_is_ended(mailbox, tmp_path, where, name):
    flood = f"open({str(tmp_path)!r} + '/' + str(os.getpid()), 'w')\nwhile True: print('y' * 999, file=sys.{where})"
    (tmp_path / "agent.py").write_text(PROGRAM + flood)
    found = drain(mailbox((sys.executable, str(tmp_path / "agent.py"))), requests(2, limit=200))
    for response in found.values():
        assert f"wrote more than 1,048,576 bytes to its {name} and was ended" in response.reason
    began = [int(path.name) for path in tmp_path.iterdir() if path.name.isdecimal()]
    assert len(began) == 2
    assert all(map(has_ended, began))


def has_ended(process):
    try:
        handle = os.pidfd_open(process)
    except ProcessLookupError:
        return True
    with open(handle):
        return bool(select.select([handle], [], [], 60.0)[0])


def test_an_agent_bounds_its_turns_within_those_of_the_recipe(mailbox):
    lengths = [
        [turn.stop - turn.first for turn in made.turns if turn.who == MODEL] for made in played(mailbox, "bounds", 8)
    ]
    assert max(first for first, _ in lengths) == 3
    assert max(second for _, second in lengths) == 12  # max_turn_tokens


@pytest.mark.parametrize(
    ("agent", "turns"), quick([("chain", 1), ("others", 1), ("bounds", 0), ("bounds", 1)], [("chain", 1)])
)
def test_an_episode_taken_back_is_played_again_after_a_kill(mailbox, agent, turns):
    """Also in the middle of a turn."""
    whole = {n: content(one) for n, one in drain(mailbox(agent), requests(4, limit=200)).items()}
    first = mailbox(agent)
    first.submit(requests(4, limit=200), lambda key: PROMPT)
    while not any(begun_turns(request) > turns for request in first._requests.values()):
        first.pump(0.0)
    first.pump(0.0)
    found = {one.key.group: one for one in first.recall("train")}
    parts = {n: from_tree(Response, to_tree(one)) for n, one in found.items()}
    assert any(part.turns for part in parts.values())
    left = {n: part if len(part) else None for n, part in parts.items()}
    rest = drain(mailbox(agent), requests(4, limit=200, prefixes=left))
    assert {n: content(one) for n, one in rest.items()} == whole


def begun_turns(request):
    """Count the turns of the model that ended before the one that an engine makes, and that one."""
    return 1 + sum(turn.who == MODEL for turn in (() if request.prefix is None else request.prefix.turns))


@pytest.mark.whole
def test_an_agent_that_asks_otherwise_when_it_is_played_again_starts_anew(mailbox, caplog):
    first = mailbox("moody")
    first.submit(requests(4, limit=200), lambda key: PROMPT)
    while not any(len(one.response.turns) > 2 for one in first.episodes._episodes.values()):
        first.pump(0.0)
    parts = {one.key.group: one for one in first.recall("train")}
    left = {n: part if len(part) else None for n, part in parts.items()}
    again = mailbox("moody")
    found = drain(again, requests(4, limit=200, prefixes=left))
    assert {one.ended for one in found.values()} == {"done"}
    assert again.episodes.not_repeatable > 0
    assert "the agent's request 0 was another one when it was played again" in caplog.text


def content(made):
    turns = [(turn.first, turn.stop, turn.who, turn.text) for turn in made.turns]
    return made.token_ids.tolist(), made.generated.tolist(), shown(made), turns, dict(made.scores)


def test_a_function_that_takes_other_arguments_is_refused(mailbox):
    with pytest.raises(RecipeError, match=r"agents_for_tests:chain is called as \(prompt, base_url"):
        mailbox("chain", args={"rounds": 2, "speed": 1})


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
