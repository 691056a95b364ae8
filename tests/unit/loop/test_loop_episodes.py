"""Episodes in the mailbox: turns, limits, late answers, and what is left of one that is taken back."""

from __future__ import annotations

import itertools
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from episode_requests import LIMIT, PROMPT, STOPS, assert_no_slot_is_kept, drain, requests
from inline_transport import InlineTransport
from number_engine import GATE, NumberEngine, Numbers, ticket
from players import FreshWordSpeech, HerePlayers, WordSpeech
from quick import quick

from dapo.engines.host import EngineHost
from dapo.engines.pool import EnginePool
from dapo.engines.stops import StopStrings
from dapo.errors import EpisodeError
from dapo.loop.sampling.episode import Limits
from dapo.loop.sampling.episodes import Episodes
from dapo.loop.sampling.rollouts import Rollouts, Texts
from dapo.processes.transport import HostSpec
from dapo.types.batch import MODEL, Key, Prompt, Response, SampleRequest, SamplingParams
from dapo.types.codec import from_tree, to_tree
from dapo.types.enums import FinishReason
from dapo.types.environment import Reply


def echo(prompt, rng, most=4):
    """Answers with a random word, and is done after ``most`` turns."""
    said = yield f"w{rng.randrange(3, 9)} w4"
    for number in range(most - 1):
        said = yield f"w{3 + (len(said.token_ids) + number) % 30} w{rng.randrange(3, 30)} w12"
    return {"accuracy": float(len(said.token_ids) % 2)}


class Mute:
    """Never ends an episode."""

    def step(self, turn):
        return Reply("w5", reward=0.25, facts={"turn": turn.number})

    def end(self, why):
        return {"accuracy": 1.0 if why == "turns" else 0.5}


def mailbox(players, slots=3, lag=2, stop=(), read=("accuracy",), speech=WordSpeech, waits=True, **limits):
    engine = NumberEngine(slots)
    engine.load(ticket(3))
    strings = StopStrings(Numbers)
    texts = Texts(
        lambda rows: [Numbers.decode(row.tolist()) for row in rows], first_stop=strings.first if stop else None
    )
    limits = Limits(**{"max_turns": 6, **limits})
    episodes = Episodes(players, speech(), texts, limits, lag=lag, read_scores=read, waits=waits)
    return Rollouts(engine, None, texts, episodes)


def content(made):
    turns = [(t.first, t.stop, t.who, t.text, t.reward, t.calls, t.cut, prompt_of(t)) for t in made.turns]
    return (made.token_ids.tolist(), made.generated.tolist(), made.finish, made.ended, dict(made.scores), turns)


def prompt_of(turn):
    return None if turn.prompt_ids is None else turn.prompt_ids.tolist()


def test_turns_and_replies_stand_in_one_row():
    found = drain(mailbox(HerePlayers(echo)), requests())
    for made in found.values():
        assert made.turns[0].who == "user"
        assert [turn.who for turn in made.turns][:3] == ["user", MODEL, "user"]
        assert [a.stop for a in made.turns] == [b.first for b in made.turns[1:]] + [len(made)]
        for turn in made.turns:
            assert (made.generated[turn.first : turn.stop] == (turn.who == MODEL)).all()
            if turn.who != MODEL:
                assert turn.text == Numbers.decode(made.token_ids[turn.first : turn.stop].tolist())
                assert (made.logprobs[turn.first : turn.stop] == 0.0).all()
            else:
                assert made.token_ids[turn.stop - 1] in STOPS or made.finish is FinishReason.LENGTH
                assert not set(made.token_ids[turn.first : turn.stop - 1].tolist()) & set(STOPS)
        assert made.new_tokens == made.model_tokens == made.generated.sum() < len(made)
        assert made.text == "\n".join(turn.text for turn in made.turns if turn.who == MODEL)
        assert made.final_text == [turn.text for turn in made.turns if turn.who == MODEL][-1]
    assert {found[n].ended for n in found} >= {"done"}


def test_the_speed_of_an_environment_decides_nothing():
    whole = {n: content(one) for n, one in drain(mailbox(HerePlayers(echo)), requests()).items()}
    for delay in (1, 3, 50):
        late = drain(mailbox(HerePlayers(echo, delay=delay)), requests())
        assert {n: content(one) for n, one in late.items()} == whole


@pytest.mark.parametrize("delay", [0, 1, 7])
@pytest.mark.parametrize("lag", [0, 3, 1000])
def test_by_the_wall_clock_a_reply_takes_effect_when_it_is_there(lag, delay):
    """No engine step is waited for, which an engine without work would never take; and nothing is said otherwise."""
    whole = {n: content(one) for n, one in drain(mailbox(HerePlayers(echo)), requests()).items()}
    subject = mailbox(HerePlayers(echo, delay=delay), lag=lag, waits=False)
    subject.submit(requests(), lambda key: PROMPT)
    found, looks = {}, 0
    while len(found) < len(whole):
        subject.pump(0.0)
        looks += 1
        assert looks < 1000, subject.awaited()
        found |= {one.key.group: content(one) for one in subject.ended("train")}
    assert found == whole
    assert subject.under_way("train") == 0


def test_an_environment_that_forgets_a_question_is_an_error():
    players = HerePlayers(echo)
    ask = players.ask
    players.ask = lambda question: None if len(question.past) == 1 else ask(question)
    with pytest.raises(EpisodeError, match="never answered"):
        drain(mailbox(players), requests())


def test_in_lockstep_replies_take_effect_at_their_round_however_long_rounds_take():
    """Also while no response ends for many rounds: replies may not wait for that."""

    def played(seconds):
        clock = itertools.count(0, seconds)
        specs = [HostSpec(f"engine-{n}", EngineHost, (NumberEngine, 4)) for n in range(2)]
        pool = EnginePool(InlineTransport(), specs, GATE, turn_steps=1, lockstep=True, now=lambda: next(clock))
        pool.load(ticket(3))
        texts = Texts(lambda rows: [Numbers.decode(row.tolist()) for row in rows])
        limits = Limits(max_turns=6)
        episodes = Episodes(HerePlayers(echo), WordSpeech(), texts, limits, lag=2, read_scores=["accuracy"])
        asked = requests(8)
        found = drain(Rollouts(pool, None, texts, episodes), asked)
        return {n: (one.tick, content(one)) for n, one in found.items()}

    assert played(0.0) == played(1.0)


@pytest.mark.parametrize("speech", [WordSpeech, FreshWordSpeech])
@pytest.mark.parametrize("lives", quick([True, False], [False]))
def test_an_episode_taken_back_anywhere_goes_on_as_if_it_had_not_been(lives, speech):
    """In the same process, and after a kill, of which only the saved state remains."""
    whole = {n: content(one) for n, one in drain(mailbox(HerePlayers(echo), speech=speech), requests()).items()}
    in_the_middle = asked = 0
    for steps in range(1, 70, 3):
        players = HerePlayers(echo, delay=1)
        subject = mailbox(players, speech=speech)
        subject.submit(requests(), lambda key: PROMPT)
        for _ in range(steps):
            subject.pump(0.0)
        found = {one.key.group: one for one in subject.recall("train")}
        assert sorted(found) == list(range(6))
        assert subject.under_way("train") == 0
        assert_no_slot_is_kept(subject)
        over = {n: one for n, one in found.items() if one.finish is not None}
        parts = {n: from_tree(Response, to_tree(one)) for n, one in found.items() if n not in over}
        in_the_middle += sum(part.turn_start > 0 for part in parts.values())
        asked += sum(bool(part.turns) and part.turns[-1].who == MODEL for part in parts.values())
        again = subject if lives else mailbox(HerePlayers(echo), speech=speech)
        left = {n: part if len(part) else None for n, part in parts.items()}
        rest = drain(again, [one for one in requests(prefixes=left) if one.key.group in parts])
        assert {n: content(one) for n, one in (over | rest).items()} == whole
        tokens = {n: found[n].new_tokens + (rest[n].new_tokens if n in rest else 0) for n in found}
        assert tokens == {n: sum(one[1]) for n, one in whole.items()}
    assert in_the_middle > 20
    assert asked > 2


@pytest.mark.parametrize("speech", [WordSpeech, FreshWordSpeech])
def test_each_further_turn_finds_its_slot_and_no_lane_takes_those_of_another(speech):
    """Also where it has a prompt of its own: that begins as the turn before."""
    subject = mailbox(HerePlayers(echo, most=4), speech=speech)
    turns = sum(len(one.turns) // 2 for one in drain(subject, requests()).values())
    opened = 6  # first turns, behind what the environment says first
    assert subject.engine.found == turns - opened > 6
    other = [replace(one, key=one.key._replace(lane="evaluate")) for one in requests()]
    subject.submit(requests() + other, lambda key: PROMPT)
    while len(subject.engine.kept) < 4 or len({key.lane for key in subject.engine.kept}) < 2:
        assert subject.pump(0.0) is not None
    subject.recall("evaluate")
    assert {key.lane for key in subject.engine.kept} == {"train"}
    found = {}
    while len(found) < 6:
        subject.pump()
        found |= {one.key.group: one for one in subject.ended("train")}
    assert_no_slot_is_kept(subject)


def test_what_the_model_is_given_to_read_is_counted_once():
    subject = mailbox(HerePlayers(echo, most=4))
    found = drain(subject, requests())
    replies = [t.stop - t.first for one in found.values() for t in one.turns if t.who != MODEL]
    assert subject.episodes.given == 6 * len(PROMPT.token_ids) + sum(replies)
    other = [replace(one, key=one.key._replace(lane="evaluate")) for one in requests()]
    subject.submit(other, lambda key: PROMPT)
    while subject.under_way("evaluate"):
        subject.pump()
    assert subject.episodes.counters()["given_tokens"] == 6 * len(PROMPT.token_ids) + sum(replies)


def test_a_state_is_restored_and_nothing_is_played_again():
    class Counting(Mute):
        def __init__(self):
            self.turns = 0

        def step(self, turn):
            self.turns += 1
            return Reply(f"w{4 + self.turns}") if self.turns < 4 else Reply(done=True, scores={"accuracy": 1.0})

        def state(self):
            return {"turns": self.turns}

        def restore(self, state):
            self.turns = state["turns"]

    whole = {n: content(one) for n, one in drain(mailbox(HerePlayers(Counting)), requests()).items()}
    first = mailbox(HerePlayers(Counting))
    first.submit(requests(), lambda key: PROMPT)
    for _ in range(25):
        first.pump(0.0)
    found = {one.key.group: one for one in first.recall("train")}
    over = {n: one for n, one in found.items() if one.finish is not None}
    parts = {n: from_tree(Response, to_tree(one)) for n, one in found.items() if n not in over}
    players = HerePlayers(Counting)
    rest = drain(mailbox(players), [one for one in requests(prefixes=parts) if one.key.group in parts])
    assert {n: content(one) for n, one in (over | rest).items()} == whole
    states = [one for one in players.asked if one.state is not None]
    assert any(part.turns for part in parts.values())
    assert states
    assert all(turn.state is None for one in rest.values() for turn in one.turns)


def test_an_episode_that_is_answered_otherwise_when_it_is_played_again_starts_anew(caplog):
    """It becomes what it had been without a stop, by the environment as it is now."""

    def otherwise(prompt, rng):
        return (yield from echo(prompt, rng, most=3 + rng.randrange(2)))

    first = mailbox(HerePlayers(otherwise))
    first.submit(requests(limit=400), lambda key: PROMPT)
    for _ in range(40):
        first.pump(0.0)
    found = {one.key.group: one for one in first.recall("train")}
    parts = {n: one for n, one in found.items() if one.finish is None}
    parts = {n: part for n, part in parts.items() if part.turns}
    again = mailbox(HerePlayers(echo))
    rest = drain(again, [one for one in requests(limit=400, prefixes=parts) if one.key.group in parts])
    whole = drain(mailbox(HerePlayers(echo)), requests(limit=400))
    assert {n: content(one) for n, one in rest.items()} == {n: content(whole[n]) for n in rest}
    assert 2 < again.episodes.not_repeatable <= len(parts)
    (told,) = [record.getMessage() for record in caplog.records if "starts anew" in record.getMessage()]
    assert "turn 0 was answered otherwise when it was played again" in told


def test_the_limit_of_turns_is_scored_or_truncates():
    found = drain(mailbox(HerePlayers(Mute), max_turns=2), requests(limit=400))
    for made in found.values():
        assert (made.finish, made.ended, made.scores) == (FinishReason.STOP, "turns", {"accuracy": 1.0})
        assert [turn.who for turn in made.turns] == [MODEL, "user", MODEL]
        assert sum(turn.reward for turn in made.turns) == 0.5
        assert made.turns[-1].facts == {"turn": 1}
    found = drain(mailbox(HerePlayers(Mute), max_turns=2, truncates_turns=True), requests(limit=400))
    assert {one.finish for one in found.values()} == {FinishReason.LENGTH}


def test_spent_tokens_truncate_whoever_spent_them():
    found = drain(mailbox(HerePlayers(Mute), max_turns=30), requests(limit=24))
    assert {one.finish for one in found.values()} == {FinishReason.LENGTH}
    assert {one.scores["accuracy"] for one in found.values()} == {0.5}
    assert {one.ended for one in found.values()} <= {"tokens", "reply"}
    assert all(one.turns[-1].who == MODEL for one in found.values())

    class Long(Mute):
        def step(self, turn):
            return Reply(" ".join(["w5"] * 20))

    found = drain(mailbox(HerePlayers(Long)), requests(limit=24))
    assert {one.ended for one in found.values() if len(one) < 24} == {"reply"}


def test_a_turn_has_a_limit_of_its_own():
    found = drain(mailbox(HerePlayers(Mute), max_turns=3, max_turn_tokens=4), requests(limit=400))
    for response in found.values():
        own = [turn for turn in response.turns if turn.who == MODEL]
        assert max(turn.stop - turn.first for turn in own) <= 4
        assert [turn.cut for turn in own] == [response.token_ids[turn.stop - 1] not in STOPS for turn in own]
        assert response.finish is FinishReason.STOP
    found = drain(mailbox(HerePlayers(Mute), max_turn_tokens=4, truncates_tokens=True), requests(limit=400))
    assert any(one.finish is FinishReason.LENGTH for one in found.values())


def test_a_long_reply_is_cut_or_refused():
    class Long(Mute):
        def step(self, turn):
            return Reply(" ".join(["w5"] * 20))

    found = drain(mailbox(HerePlayers(Long), max_turns=2, max_reply_tokens=6), requests(limit=100))
    for response in found.values():
        (reply,) = [turn for turn in response.turns if turn.who == "user"]
        assert (reply.stop - reply.first, reply.cut) == (6, True)
    refuses = mailbox(HerePlayers(Long), max_reply_tokens=6, refuses_long_replies=True)
    found = drain(refuses, requests(limit=100))
    assert {one.reason for one in found.values()} == {
        "environment: reply: it has more than max_reply_tokens = 6 tokens"
    }


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (lambda turn: 1 / 0, "exception: ZeroDivisionError"),
        (lambda turn: "no reply", "reply: expected a dapo.Reply, found str"),
        (lambda turn: Reply("w5", reward=float("nan")), "reply: reward: not a number: nan"),
        (lambda turn: Reply("w5", facts={"tries": "3"}), "reply: tries: not a number: str '3'"),
        (lambda turn: Reply(done=True, scores={"accuracy": 1.0, "tries": 1e999}), "reply: tries: not a number: inf"),
        (lambda turn: Reply(""), "reply: an empty reply that does not end"),
        (lambda turn: Reply("w5", scores={"accuracy": 1.0}), "reply: scores come with done=True"),
        (lambda turn: Reply(done=True, scores={"a/b": 1.0}), "reply: scores: 'a/b' cannot name a metric"),
    ],
)
def test_an_environment_that_fails_costs_one_response(wrong, reason):
    class Bad(Mute):
        def step(self, turn):
            return wrong(turn) if turn.number == 1 else Reply("w5")

    found = drain(mailbox(HerePlayers(Bad)), requests(limit=400))
    assert {one.finish for one in found.values()} == {FinishReason.FAILED}
    assert all(one.reason.startswith(f"environment: {reason}") for one in found.values())
    ends = drain(mailbox(HerePlayers(Bad), ends_on_error=True), requests(limit=400))
    assert {(one.finish, one.ended) for one in ends.values()} == {(FinishReason.STOP, "error")}
    assert not any(one.scores for one in ends.values())


def test_scores_that_no_reward_reads_are_refused():
    with pytest.raises(EpisodeError, match=r"returned the scores accuracy, and no reward reads them.*style is missing"):
        drain(mailbox(HerePlayers(echo), read=("style",)), requests())


def test_further_numbers_of_an_environment_come_with_all_scores_that_rewards_read():
    def counted(prompt, rng):
        yield ""
        yield Reply("w5", facts={"seen": 2})
        return {"accuracy": 1.0, "tries": 2, "seen": True}

    for one in drain(mailbox(HerePlayers(counted)), requests(limit=400)).values():
        own = [dict(turn.facts) for turn in one.turns if turn.who == "assistant"]
        assert dict(one.scores) == {"accuracy": 1.0}
        assert own == [{"seen": 2.0}, {"tries": 2.0, "seen": 1.0}]

    def limited(prompt, rng):
        yield ""
        return {"acuracy": 1.0}

    with pytest.raises(EpisodeError, match=r"scores acuracy, and no reward reads them; .*\(accuracy is missing\)"):
        drain(mailbox(HerePlayers(limited)), requests())
    with pytest.raises(EpisodeError, match="returned the scores accuracy, seen, tries, and no reward reads them; Add"):
        drain(mailbox(HerePlayers(counted), read=()), requests(limit=400))


def test_a_stop_string_looks_at_the_turn_alone():
    """A reply may end with one, and the end of the turn before is no end of the next."""

    class Ends(Mute):
        def step(self, turn):
            return Reply("w9 w12" if turn.number < 2 else "w5") if turn.number < 3 else Reply(done=True)

    stop = ("w12",)
    found = drain(mailbox(HerePlayers(Ends), stop=stop), requests(limit=400, stop=stop))
    for response in found.values():
        own = [turn for turn in response.turns if turn.who == MODEL]
        assert len(own) == 4
        for turn in own:
            ids = response.token_ids[turn.first : turn.stop].tolist()
            assert ids.index(12) == len(ids) - 1
            assert "w12" not in turn.text


def test_a_lane_without_an_environment_is_played_without_one():
    subject = mailbox(HerePlayers(echo))
    subject.submit([SampleRequest(Key("check", 0, 0), PROMPT.token_ids, SamplingParams(5), 3)])
    while subject.pump():
        pass
    (response,) = subject.ended("check")
    assert len(response) == 5
    assert (response.turns, response.ended) == ((), None)


def test_a_finished_episode_survives_a_checkpoint():
    for response in drain(mailbox(HerePlayers(echo)), requests()).values():
        again = from_tree(Response, to_tree(response))
        for name in ("token_ids", "generated", "logprobs", "versions"):
            assert np.array_equal(getattr(again, name), getattr(response, name))
        for name in ("turns", "ended", "scores", "answer", "finish", "text"):
            assert getattr(again, name) == getattr(response, name)


def test_environments_are_closed_once_whatever_happens():
    closed = []

    class Closing(Mute):
        def close(self):
            closed.append(id(self))

        def step(self, turn):
            return Reply("w5") if turn.number < 1 else Reply(done=True)

    subject = mailbox(HerePlayers(Closing))
    drain(subject, requests(limit=400))
    assert len(closed) == 6
    subject.submit(requests(limit=400), lambda key: PROMPT)
    for _ in range(30):
        subject.pump(0.0)
    back = subject.recall("train")
    subject.drop([one.key for one in back])
    assert not subject.episodes._episodes
    assert not subject.episodes.players.stage.episodes
    assert all(a != b for a, b in pairwise(closed[-2:]))


# ---------------------------------------------------------------------- a prompt for each turn


def asked_of(engine):
    """The requests that an engine gets, in order."""
    asked, submit = [], engine.submit
    engine.submit = lambda requests: (asked.extend(requests), submit(requests))[1]
    return asked


def test_each_turn_has_the_conversation_as_it_is_written_then():
    """Earlier turns of the model are in it by their last word; the engine has the present turn alone."""
    subject = mailbox(HerePlayers(echo), speech=FreshWordSpeech)
    asked = asked_of(subject.engine)
    found = drain(subject, requests())
    for made in found.values():
        said, own = ["w5 w6"], [turn for turn in made.turns if turn.who == MODEL]
        for turn in made.turns:
            if turn.who == MODEL:
                assert prompt_of(turn) == [int(word[1:]) for text in said for word in text.split()]
                said += turn.text.split()[-1:]
            else:
                assert turn.prompt_ids is None
                said.append(turn.text)
        mine = [request for request in asked if request.key == made.key]
        assert [request.prompt_ids.tolist() for request in mine] == list(map(prompt_of, own))
        assert len({request.seed for request in mine}) == len(mine)
        assert all(request.prefix is None for request in mine)
        room = [len(request.prompt_ids) + request.sampling.max_tokens for request in mine]
        assert max(room) <= len(PROMPT.token_ids) + LIMIT
        spent = [LIMIT - turn.first for turn in own]
        assert all(request.sampling.max_tokens <= left for request, left in zip(mine, spent, strict=True))
        assert made.new_tokens == made.model_tokens


def test_a_prompt_that_leaves_no_token_ends_the_episode_by_its_reply():
    class Growing(FreshWordSpeech):
        def written(self, messages, tools=()):
            return np.full(len(PROMPT.token_ids) + LIMIT + (len(messages) > 3) - 1, 5)

    found = drain(mailbox(HerePlayers(Mute), speech=Growing), requests())
    assert {one.ended for one in found.values()} <= {"reply", "tokens"}
    assert any(one.ended == "reply" for one in found.values())
    assert all(one.finish is FinishReason.LENGTH for one in found.values())


def test_a_prompt_that_cannot_be_written_costs_the_response():
    class Refusing(FreshWordSpeech):
        def written(self, messages, tools=()):
            raise ValueError("no such role")

    found = drain(mailbox(HerePlayers(Mute), speech=Refusing), requests())
    assert {one.reason for one in found.values()} == {"environment: prompt: no such role"}
    assert all(one.finish is FinishReason.FAILED for one in found.values())


def test_a_prompt_without_its_messages_is_refused_with_the_next_move():
    subject = mailbox(HerePlayers(echo), speech=FreshWordSpeech)
    subject.submit(requests(1), lambda key: Prompt("id", "5 6", np.array([5, 6]), "problem", "7", "source"))
    with pytest.raises(EpisodeError, match=r"Prompt\(chat=.*rows: append"):
        [subject.pump() for _ in range(100)]
