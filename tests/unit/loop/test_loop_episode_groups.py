"""Episodes of a group that are scored together: when, in which order, and what becomes of those that are lost."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from episode_requests import LIMIT, PROMPT, STOPS, assert_no_slot_is_kept
from number_engine import NumberEngine, Numbers, ticket
from players import HerePlayers, WordSpeech

from dapo.loop.sampling.episode import Limits
from dapo.loop.sampling.episodes import MOST_LOSSES, Episodes
from dapo.loop.sampling.rollouts import Rollouts, Texts
from dapo.types.batch import MODEL, Key, Response, SampleRequest, SamplingParams
from dapo.types.codec import from_tree, to_tree
from dapo.types.enums import FinishReason
from dapo.types.environment import NOT_HELD, Reply

GROUPS, SIZE = 3, 4


class Counts:
    """Ends after three turns, by itself; knows how many tokens the model wrote."""

    def __init__(self, odd=""):
        self.tokens = self.turns = 0
        self.odd = odd

    def step(self, turn):
        self.tokens += len(turn.token_ids)
        self.turns += 1
        if self.odd and turn.token_ids[0] % 5 == 0:
            raise ValueError(self.odd)
        return Reply("w8", done=True, reward=9.0) if self.turns == 3 else Reply("w5 w6")

    def end(self, why):
        return Reply(done=True)


async def rank(environments):
    """Rewards how many of the others wrote fewer tokens."""
    tokens = [each.tokens for each in environments]
    ranks = [sum(other < own for other in tokens) for own in tokens]
    return [
        Reply(done=True, reward=ranked / 10, scores={"accuracy": ranked / 10}, facts={"group": len(tokens)})
        for ranked in ranks
    ]


def requests(prefixes=None, greedy=()):
    made = []
    for group in range(GROUPS):
        for sample in range(SIZE):
            key = Key("train", group, sample)
            temperature = 0.0 if sample in greedy else 1.0
            sampling = SamplingParams(max_tokens=LIMIT, stop_token_ids=STOPS, temperature=temperature)
            seed = 7 * (SIZE * group + sample) + 1
            made.append(SampleRequest(key, PROMPT.token_ids, sampling, seed, (prefixes or {}).get(key), priority=group))
    return made


def mailbox(players, slots=5, lag=2, waits=True, **limits):
    engine = NumberEngine(slots)
    engine.load(ticket(3))
    texts = Texts(lambda rows: [Numbers.decode(row.tolist()) for row in rows])
    limits = Limits(**{"max_turns": 4, **limits})
    episodes = Episodes(players, WordSpeech(), texts, limits, lag=lag, read_scores=("accuracy",), waits=waits)
    return Rollouts(engine, None, texts, episodes)


def drain(subject, asked, at=lambda pumped: None):
    """Return the responses by key; ``at`` is called before each pump."""
    subject.submit(asked, lambda key: PROMPT)
    found, pumped = {}, 0
    while len(found) < len(asked):
        at(pumped)
        assert subject.pump(0.0) is not None
        pumped += 1
        assert pumped < 2000
        found |= {one.key: one for one in subject.ended("train")}
    assert subject.under_way("train") == 0
    assert not subject.lost("train")
    assert_no_slot_is_kept(subject)
    assert not subject.episodes.players.stage.episodes, "every episode was closed"
    return found


def content(made):
    turns = [(t.first, t.stop, t.who, t.reward, dict(t.facts)) for t in made.turns]
    return (made.token_ids.tolist(), made.finish, made.ended, dict(made.scores), turns, made.reason)


def contents(found):
    return {key: content(one) for key, one in found.items()}


def test_a_group_is_scored_once_with_all_of_its_episodes_and_each_gets_its_own():
    players = HerePlayers(Counts, compare=rank)
    found = drain(mailbox(players), requests())
    asked = [question.members for question in players.asked if question.members]
    assert sorted(asked) == [tuple(Key("train", group, sample) for sample in range(SIZE)) for group in range(GROUPS)]
    for group in range(GROUPS):
        made = [found[Key("train", group, sample)] for sample in range(SIZE)]
        for own in made:
            better = sum(other.model_tokens < own.model_tokens for other in made)
            last = [turn for turn in own.turns if turn.who == MODEL][-1]
            assert own.scores == {"accuracy": better / 10}
            assert (last.reward, last.facts) == (better / 10, {"group": SIZE}), "in place of what the episode said"
            if own.ended == "done":
                assert own.turns[-1].text == "w8", "the last reply is recorded"
    assert {one.ended for one in found.values()} >= {"done"}
    assert len({one.scores["accuracy"] for one in found.values()}) > 2


def test_limits_end_an_episode_before_its_group_is_scored():
    found = drain(mailbox(HerePlayers(Counts, compare=rank), max_turns=2), requests())
    assert {one.ended for one in found.values()} == {"turns"}
    lengths = [found[Key("train", 0, sample)].model_tokens for sample in range(SIZE)]
    scores = [found[Key("train", 0, sample)].scores["accuracy"] for sample in range(SIZE)]
    assert scores == [sum(other < own for other in lengths) / 10 for own in lengths]


def test_the_speed_of_environments_and_scores_decides_nothing():
    whole = contents(drain(mailbox(HerePlayers(Counts, compare=rank)), requests()))
    for delay in (1, 7):
        assert contents(drain(mailbox(HerePlayers(Counts, compare=rank, delay=delay)), requests())) == whole
        by_the_clock = mailbox(HerePlayers(Counts, compare=rank, delay=delay), lag=1000, waits=False)
        assert contents(drain(by_the_clock, requests())) == whole


@pytest.mark.parametrize("lives", [True, False])
def test_a_group_taken_back_anywhere_goes_on_as_if_it_had_not_been(lives):
    """In the same process, and after a kill, of which only the saved state remains: what ended is played again."""
    whole = contents(drain(mailbox(HerePlayers(Counts, compare=rank)), requests()))
    held = 0
    for steps in range(5, 60, 6):
        subject = mailbox(HerePlayers(Counts, compare=rank, delay=1))
        subject.submit(requests(), lambda key: PROMPT)
        for _ in range(steps):
            subject.pump(0.0)
        held += len(subject.episodes.held())
        found = {one.key: one for one in subject.recall("train")}
        assert len(found) + len(subject.ended("train")) == GROUPS * SIZE
        assert subject.under_way("train") == 0
        assert_no_slot_is_kept(subject)
        over = {key: one for key, one in found.items() if one.finish is not None}
        parts = {key: from_tree(Response, to_tree(one)) for key, one in found.items() if key not in over}
        left = {key: part if len(part) else None for key, part in parts.items()}
        again = subject if lives else mailbox(HerePlayers(Counts, compare=rank))
        rest = drain(again, [one for one in requests(left) if one.key in parts])
        assert contents(over | rest) == whole
    assert held > 10


def test_held_episodes_have_left_the_engine():
    subject = mailbox(HerePlayers(Counts, compare=rank), slots=2)
    subject.submit(requests(), lambda key: PROMPT)
    seen = 0
    while subject.under_way("train"):
        held = subject.episodes.held("train")
        assert not set(held) & set(subject.engine.kept)
        assert subject.under_way("train") + len(held) + len(subject.ended("train")) <= GROUPS * SIZE
        seen = max(seen, len(held))
        subject.pump(0.0)
    assert seen >= 2


def test_an_episode_that_fails_is_left_out_and_the_others_are_compared():
    found = drain(mailbox(HerePlayers(Counts, compare=rank, odd="odd")), requests())
    failed = {key for key, one in found.items() if one.finish is FinishReason.FAILED}
    assert 0 < len(failed) < len(found)
    assert all("ValueError: odd" in found[key].reason for key in failed)
    for key, one in found.items():
        mates = sum(other.group == key.group and other not in failed for other in found)
        if key not in failed:
            assert [turn for turn in one.turns if turn.who == MODEL][-1].facts == {"group": mates}


def test_scores_that_raise_cost_their_group_alone():
    calls = itertools.count(1)

    async def picky(environments):
        if next(calls) == 2:
            raise KeyError("gone")
        return await rank(environments)

    found = drain(mailbox(HerePlayers(Counts, compare=picky)), requests())
    failed = {key for key, one in found.items() if one.finish is FinishReason.FAILED}
    assert len(failed) == SIZE
    assert len({key.group for key in failed}) == 1
    assert all("environment: exception: KeyError: 'gone'" in found[key].reason for key in failed)


def test_scores_of_another_number_of_episodes_are_refused():
    async def short(environments):
        return (await rank(environments))[1:]

    found = drain(mailbox(HerePlayers(Counts, compare=short)), requests())
    assert {one.reason for one in found.values()} == {"environment: reply: scores of 3 episodes, expected 4"}


def test_a_lost_process_is_made_up_for_by_playing_its_episodes_again_and_delays_nothing():
    """The collector's order depends on the engine step at which a group ends."""
    traces, found, replayed = [], [], []
    for lost in (False, True):
        players = HerePlayers(Counts, compare=rank)
        subject, trace = mailbox(players), []

        def lose_once(pumped, players=players, subject=subject, trace=trace, lost=lost):
            trace.append((subject.under_way("train"), len(subject.episodes.held())))
            if lost and len(subject.episodes.held()) >= 3 and not players.replayed:
                players.lose()

        found.append(contents(drain(subject, requests(), lose_once)))
        traces.append(trace)
        replayed.append(players.replayed)
    assert found[0] == found[1]
    assert traces[0] == traces[1]
    assert replayed[0] == 0 < replayed[1]


def test_a_process_that_is_lost_again_and_again_costs_the_group_and_not_the_run():
    players = HerePlayers(Counts, compare=rank)
    answer = players._answer

    def lost(question):
        if question.members and question.key.group == 1:
            players.lose()
        return answer(question)

    players._answer = lost
    found = drain(mailbox(players), requests())
    failed = {key for key, one in found.items() if one.finish is FinishReason.FAILED}
    assert failed == {Key("train", 1, sample) for sample in range(SIZE)}
    assert {found[key].reason for key in failed} == {f"environment: {NOT_HELD}"}
    assert sum(question.key.group == 1 and bool(question.members) for question in players.asked) == 1 + MOST_LOSSES


def test_the_greedy_response_of_an_evaluation_is_compared_with_no_other():
    players = HerePlayers(Counts, compare=rank)
    asked = [replace(one, key=one.key._replace(lane="evaluate")) for one in requests(greedy=(SIZE - 1,))]
    subject = mailbox(players)
    subject.submit(asked, lambda key: PROMPT)
    while subject.under_way("evaluate"):
        subject.pump()
    sizes = sorted(len(question.members) for question in players.asked if question.members)
    assert sizes == [1] * GROUPS + [SIZE - 1] * GROUPS


def test_an_engine_that_has_nothing_to_do_does_not_wait_for_the_lag():
    assert len(drain(mailbox(HerePlayers(Counts, compare=rank), lag=10**6), requests())) == GROUPS * SIZE
