"""Thinking: where an answer counts, how long the way there may be, and what of it is trained."""

from __future__ import annotations

import numpy as np
import pytest
from number_engine import GATE, NumberEngine, Numbers, ticket, token
from players import FreshWordSpeech, HerePlayers, WordSpeech
from quick import quick

from dapo.loop.sampling.account import response_metrics
from dapo.loop.sampling.episode import Limits
from dapo.loop.sampling.episodes import Episodes
from dapo.loop.sampling.rollouts import Rollouts
from dapo.loop.sampling.texts import Texts, Thinking
from dapo.types.batch import MODEL, Group, Key, Prompt, Response, SampleRequest, SamplingParams, Score
from dapo.types.codec import from_tree, to_tree
from dapo.types.enums import FinishReason
from dapo.types.environment import Reply

BEGUN = np.array([5, 6])  # the tokens of a prompt that ends with the opening tag
PLAIN = np.array([5, 7])
FORCED = np.array([1, 2, 1])
CHAT = {"messages": [{"role": "user", "content": "w5 w6"}], "tools": []}
PROMPT = Prompt("id", "5 6", BEGUN, "problem", "7", "source", chat=CHAT)


def thinking(budget=None, close="w1 w2 w1"):
    """Words of the number engine are w3 and above; tokens 1 and 2 come by force alone."""
    return Thinking(
        "<think>",
        close,
        begun=lambda ids: ids[-1] == BEGUN[-1],
        first=GATE.strings.first,
        budget=budget,
        forced=None if budget is None else FORCED,
    )


@pytest.mark.parametrize(
    ("text", "begun", "answer", "closed"),
    [
        ("<think>5</think> 7", False, " 7", True),
        ("5</think> 7", True, " 7", True),  # the prompt ends with the opening tag
        ("5</think> 7", False, " 7", True),  # a model that leaves it out thinks all the same
        ("5</think> 6 </think> 7", True, " 7", True),
        ("<think>\\boxed{5}", False, "", False),
        ("\\boxed{5}", True, "", False),
        ("\\boxed{5}", False, "\\boxed{5}", True),  # no thinking
        ("<think>5</think> 7 <think> 8", False, "", False),
        ("6 <think>5</think>", False, "", True),
    ],
)
def test_an_answer_is_what_follows_the_thinking(text, begun, answer, closed):
    assert thinking(close="</think>").answer(text, begun) == (answer, closed)


def test_tokens_of_the_thinking_are_counted_up_to_its_last_closing_tag():
    think = thinking(close="w9 w8")
    ids = np.array([3, 9, 8, 4, 9, 8, 7])
    assert think.tokens(ids, 2) == 6
    assert think.tokens(ids, 1) == 3
    assert think.tokens(ids[:1], 0) == 0


def rollouts(budget, slots=4):
    engine = NumberEngine(slots)
    engine.load(ticket(3))
    texts = Texts(lambda rows: [Numbers.decode(row.tolist()) for row in rows], thinking=thinking(budget))
    return Rollouts(engine, None, texts)


def request(group, prompt=BEGUN, limit=12, prefix=None):
    return SampleRequest(Key("train", group, 0), prompt, SamplingParams(max_tokens=limit), 7 * group + 1, prefix)


def drain(subject):
    found = {}
    while subject.pump():
        found |= {one.key.group: one for one in subject.ended("train")}
    return found


def test_what_is_not_closed_in_time_is_closed_and_goes_on():
    subject = rollouts(budget=5)
    subject.submit([request(0), request(1, PLAIN)])
    assert subject.under_way("train") == 2
    found = drain(subject)
    assert subject.under_way("train") == 0
    forced, plain = found[0], found[1]
    sampled = [token(1, t) for t in range(12)]
    assert forced.token_ids.tolist() == [*sampled[:5], *FORCED, *sampled[8:]]  # token t is drawn at its own place
    assert forced.generated.tolist() == [True] * 5 + [False] * 3 + [True] * 4
    assert forced.logprobs.tolist() == [-1.0] * 5 + [0.0] * 3 + [-1.0] * 4
    assert set(forced.versions.tolist()) == {3}
    assert (forced.finish, forced.new_tokens, forced.thinking, forced.closed) == (FinishReason.LENGTH, 9, 8, True)
    assert forced.answer == " " + Numbers.decode(sampled[8:])
    assert plain.token_ids.tolist() == [token(8, t) for t in range(12)]  # it does not think
    assert plain.generated is None
    assert (plain.new_tokens, plain.thinking, plain.answer) == (12, 0, plain.text)


def test_a_response_taken_back_anywhere_goes_on_as_if_it_had_not_been():
    whole = rollouts(budget=5)
    whole.submit([request(0)])
    expected = drain(whole)[0]
    tried = set()
    for turns in range(12):
        first = rollouts(budget=5)
        first.submit([request(0)])
        for _ in range(turns):
            if first.under_way("train"):
                first.pump(0.0)  # one decode step
        taken = first.recall("train")
        if taken[0].finish is not None:
            continue
        tried.add(len(taken[0]))
        assert taken[0].new_tokens == taken[0].model_tokens
        second = rollouts(budget=5)
        second.submit([request(0, prefix=taken[0])])
        rest = drain(second)[0]
        assert rest.new_tokens == 9 - taken[0].model_tokens
        assert rest.token_ids.tolist() == expected.token_ids.tolist()
        assert rest.generated.tolist() == expected.generated.tolist()
        assert (rest.thinking, rest.answer) == (expected.thinking, expected.answer)
    assert tried >= {0, 1, 4, 8, 9, 11}  # before, in and behind the forced tokens


class Opens:
    """Replies with the opening tag."""

    def step(self, turn):
        return Reply("w3 w6")

    def end(self, why):
        return {"accuracy": 1.0}


class Late(NumberEngine):
    """Makes one more token before it gives back what it has, as an engine in the middle of a pool's turn does."""

    def abort(self, keys=None):
        if self.active:
            self.inbox.keep(self._step())
        return super().abort(keys)


def episodes(make=NumberEngine, speech=WordSpeech):
    """A mailbox whose episodes have turns of ten tokens, four of them for thinking."""
    subject = rollouts(budget=4)
    subject.engine = make(4)
    subject.engine.load(ticket(3))
    limits = Limits(max_turns=3, max_turn_tokens=10)
    subject.episodes = Episodes(HerePlayers(Opens), speech(), subject.texts, limits, lag=2, read_scores=["accuracy"])
    return subject


def play(subject, prefix=None):
    subject.submit([request(0, limit=60, prefix=prefix)], lambda key: PROMPT)
    (found,) = drain(subject).values()
    assert not subject.engine.kept
    assert not subject._kept
    return found


def test_of_an_episode_each_turn_has_the_budget():
    subject = episodes()
    made = play(subject)
    own = [turn for turn in made.turns if turn.who == MODEL]
    assert len(own) == 3
    for turn in own:
        assert made.generated[turn.first : turn.stop].tolist() == [True] * 4 + [False] * 3 + [True] * 3
        ids = [token(1, t) for t in range(turn.first, turn.stop)]
        assert made.token_ids[turn.first : turn.stop].tolist() == [*ids[:4], *FORCED, *ids[7:]]
    assert (made.thinking, made.closed, made.new_tokens) == (3 * 7, True, 3 * 7)
    assert subject.engine.found == 5  # each part but the first goes on behind a kept slot
    metrics = response_metrics([Group(0, PROMPT, [made, made], [Score({"accuracy": 1.0}, 1.0)] * 2)])
    assert metrics["response/thinking_forced_share"] == 1.0


@pytest.mark.parametrize("speech", [WordSpeech, FreshWordSpeech])
@pytest.mark.parametrize("make", quick([NumberEngine, Late], [Late]))
def test_an_episode_taken_back_anywhere_thinks_on_as_if_it_had_not_been(make, speech):
    whole, lengths = play(episodes(speech=speech)), set()
    for turn in (turn for turn in whole.turns if turn.who == MODEL):
        assert whole.generated[turn.first : turn.stop].tolist() == [True] * 4 + [False] * 3 + [True] * 3
    for turns in range(1, 45):
        first = episodes(make, speech)
        first.submit([request(0, limit=60)], lambda key: PROMPT)
        for _ in range(turns):
            first.pump(0.0)
        taken = first.recall("train") or first.ended("train")
        assert not first.engine.kept
        if taken[0].finish is not None:
            continue
        partial = taken[0]
        lengths.add(len(partial))
        made = play(episodes(speech=speech), partial if len(partial) else None)
        assert made.token_ids.tolist() == whole.token_ids.tolist()
        assert made.generated.tolist() == whole.generated.tolist()
        assert (made.thinking, made.answer) == (whole.thinking, whole.answer)
        assert [(turn.first, turn.stop, turn.who) for turn in made.turns] == [
            (turn.first, turn.stop, turn.who) for turn in whole.turns
        ]
    # in the thinking, just after it, after the forced tokens, and in later turns
    assert lengths >= ({2, 7, 9, 13, 19, 31} if make is NumberEngine else {2, 4, 9, 14, 16, 28})


def test_a_few_tokens_that_are_only_compared_are_left_alone():
    subject = rollouts(budget=5)
    subject.submit([request(0, limit=8)])
    assert drain(subject)[0].generated is None


def completion(thinking, closed=True, generated=None):
    none = np.zeros(4)
    return Response(
        none, none, none, FinishReason.STOP, "t", generated, answer="" if not closed else "a", thinking=thinking,
        closed=closed,
    )  # fmt: skip


def test_metrics_of_thinking_and_their_form_in_a_checkpoint():
    forced = np.array([True, False, True, True])
    made = [completion(4), completion(2, closed=False), completion(0, generated=forced), completion(2)]
    group = Group(0, Prompt("", "", none := np.zeros(1), "", "", ""), made, [])
    metrics = response_metrics([group])
    keys = ("tokens_mean", "unclosed_share", "forced_share")
    assert [metrics[f"response/thinking_{key}"] for key in keys] == [2.0, 0.25, 0.25]
    for one in made:
        again = from_tree(Response, to_tree(one))
        assert (again.answer, again.thinking, again.closed) == (one.answer, one.thinking, one.closed)
    plain = Response(none, none, none, FinishReason.STOP, "t")
    group = Group(0, group.prompt, [plain], [])
    assert not any("thinking" in key for key in response_metrics([group]))
