"""Environments in worker processes: sound ones, and bad ones that cost one response each."""

from __future__ import annotations

import numpy as np
import pytest
from quick import quick

from dapo.environments.pool import EnvironmentPool
from dapo.environments.worker import Load
from dapo.errors import EpisodeError, RecipeError
from dapo.types.batch import Key, Prompt
from dapo.types.environment import Question, Spoken

MODULE = "environments_for_tests"


def load(kind, *, args=None, tools=(), tool_format="none", timeout=20.0, tell=False):
    named = None if kind is None else f"{MODULE}:{kind}"
    return Load(named, args or {}, tuple(f"{MODULE}:{tool}" for tool in tools), tool_format, timeout, 8, tell)


@pytest.fixture
def pool(request):
    made = []

    def make(kind, workers=1, **what):
        one = EnvironmentPool(load(kind, **what), workers=workers, memory_mib=1024)
        made.append(one)
        one.start()
        return one

    yield make
    for one in made:
        one.close()


def prompt(answer="7"):
    return Prompt("id", "text", np.array([1, 2]), "problem", answer, "source")


def spoken(number, text):
    return Spoken(number, text, text, (3, 4), 90, 7 - number)


def question(n=0, past=(), turn=None, answer="7", **more):
    turn = None if turn is None else spoken(len(past), turn)
    texts = tuple(spoken(number, text) for number, text in enumerate(past))
    return Question(Key("train", n, 0), prompt(answer), 11 + n, texts, turn, **more)


def ask(subject, *questions):
    """Answers in the order of the questions."""
    for one in questions:
        subject.ask(one)
    found = {}
    while len(found) < len(questions):
        arrived = subject.poll(None)
        assert arrived
        found |= {answer.key: answer for answer in arrived}
    return [found[one.key] for one in questions]


def said(answer):
    return [message["content"] for message in answer.reply.messages]


def test_a_generator_speaks_first_answers_and_ends(pool):
    subject = pool("guess", args={"most": 2})
    assert (subject.abilities.opens, subject.abilities.ends, subject.abilities.role) == (True, False, "user")
    (opening,) = ask(subject, question())
    assert said(opening)[0].startswith("a number, please (")
    (wrong,) = ask(subject, question(turn="6"))
    assert (said(wrong), wrong.replayed) == (["no"], None)
    (right,) = ask(subject, question(past=["6"], turn="7"))
    assert (right.reply.done, right.reply.scores) == (True, {"accuracy": 1.0})
    (again,) = ask(subject, question(past=["6"], turn="5"))  # it was closed: played again from its beginning
    assert [each.messages[0]["content"] for each in again.replayed] == [said(opening)[0], "no"]
    assert said(again) == ["no"]
    assert subject.counters()["replayed"] == 1


def test_calls_of_an_asynchronous_environment_overlap(pool):
    subject = pool("Sleepy")
    answers = ask(subject, *(question(n, turn="") for n in range(30)))
    assert {said(answer)[0] for answer in answers} == {"awake"}
    assert sum(answer.seconds for answer in answers) > 1.0
    assert max(answer.seconds for answer in answers) < 1.0


def test_an_asynchronous_generator_ends_with_scores(pool):
    subject = pool("slow_guess")
    ask(subject, question())
    (right,) = ask(subject, question(turn="7"))
    assert (right.reply.done, right.reply.scores) == (True, {"accuracy": 1.0})


def test_tools_answer_and_every_mistake_is_told_to_the_model(pool):
    subject = pool(None, tools=("add", "later", "breaks"), tool_format="hermes")
    assert [tool["function"]["name"] for tool in subject.abilities.tools] == ["add", "later", "breaks"]

    def call(text):
        return f"<tool_call>{text}</tool_call>"

    turns = {
        call('{"name": "add", "arguments": {"a": 2, "b": 3}}'): "5",
        call('{"name": "later", "arguments": {"a": 2, "unit": "h"}}'): "2 h",
        call('{"name": "add", "arguments": {"b": 3}}'): "error: add needs the parameter 'a'",
        call('{"name": "add", "arguments": {"a": "2"}}'): "error: add: 'a': input should be a valid integer, found '2'",
        call('{"name": "add", "arguments": {"a": 2, "c": 1}}'): "error: add has no parameter 'c'; it has a, b",
        call('{"name": "later", "arguments": {"a": 1, "unit": "d"}}'): "error: later: 'unit': input should be 's' or",
        call('{"name": "sub", "arguments": {}}'): "error: there is no tool 'sub'; there are add, later, breaks",
        call('{"name": "breaks", "arguments": {"path": "/etc/secret/file"}}'): "error: OSError: cannot open file",
        call("{"): "error: the call could not be read: the call is no JSON: ",
    }  # fmt: skip
    answers = ask(subject, *(question(n, turn=text) for n, text in enumerate(turns)))
    for answer, expected in zip(answers, turns.values(), strict=True):
        assert said(answer)[0].startswith(expected)
        assert answer.reply.messages[0]["role"] == "tool"
        assert answer.reply.tool_errors == expected.startswith("error")
    (done,) = ask(subject, question(90, turn="It is 5."))
    assert (done.reply.done, done.reply.calls) == (True, ())


def test_a_class_keeps_a_state_and_has_tools_of_its_own(pool):
    subject = pool("Shop", args={"stock": 2}, tool_format="hermes")
    assert subject.abilities.restores
    (opening,) = ask(subject, question())
    assert (said(opening), opening.state) == (["2 in stock"], "2")
    buy = '<tool_call>{"name": "buy", "arguments": {"count": 1}}</tool_call>'
    (bought,) = ask(subject, question(turn=buy))
    assert (said(bought), bought.reply.calls, bought.state) == (["1 left"], ("buy",), "1")
    (restored,) = ask(subject, question(1, past=[buy], turn=buy, state=bought.state))
    assert (said(restored), restored.replayed) == (["0 left"], None)
    (end,) = ask(subject, question(1, past=[buy, buy], turn="done"))
    assert end.reply.scores == {"accuracy": 1.0}


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        pytest.param("hang", "timeout: no answer within 2 s", marks=pytest.mark.whole),
        ("exit", "crash: the process ended"),
        pytest.param("sys.exit", "exception: SystemExit", marks=pytest.mark.whole),
        ("raise", "exception: ValueError: no, environments_for_tests.py line"),
        pytest.param("memory", "exception: MemoryError", marks=pytest.mark.whole),
        pytest.param("write", "crash: ", marks=pytest.mark.whole),
        ("nonsense", "reply: reward: not a number: object"),
    ],
)
def test_a_bad_environment_costs_its_own_response(pool, what, reason):
    """The others of its process are played again in the next one."""
    subject = pool("Bad", timeout=2.0)
    good = [question(n, turn="a", answer="good") for n in (1, 2)]
    first = ask(subject, *good)
    bad, *rest = ask(subject, question(0, turn="a", answer=what), *(question(n, past=["a"], turn="b", answer="good")
                                                                 for n in (1, 2)))  # fmt: skip
    assert bad.failure.startswith(reason)
    assert bad.reply is None
    assert [said(answer) for answer in first] == [["fine 0"]] * 2
    assert [(said(answer), answer.failure) for answer in rest] == [(["fine 1"], None)] * 2


@pytest.mark.parametrize("what", quick(["fork", "daemon", "huge", "hang at the end"], ["fork", "daemon", "huge"]))
def test_what_a_bad_environment_leaves_behind_disturbs_nobody(pool, what):
    subject = pool("Bad", timeout=3.0)
    (odd,) = ask(subject, question(0, turn="a", answer=what))
    assert odd.reply is not None or odd.failure
    if what == "huge":
        assert len(said(odd)[0]) < 1 << 18
        assert odd.reply.cut
    subject.drop(Key("train", 0, 0))
    (fine,) = ask(subject, question(1, turn="a", answer="good"))
    assert said(fine) == ["fine 0"]


def test_an_exception_is_told_to_the_model_where_the_recipe_says_so(pool):
    subject = pool("Bad", tell=True)
    (told,) = ask(subject, question(turn="a", answer="raise"))
    assert said(told) == ["The environment failed: error: ValueError: no"]
    assert told.reply.failure == "error: ValueError: no"


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (load("nothing"), "cannot load 'environments_for_tests:nothing'"),
        (load("guess", args={"most": 2, "least": 1}), r"guess is called as \(prompt, rng, \*\*environment.args\)"),
        pytest.param(load("add"), "expected a generator function", marks=pytest.mark.whole),
        pytest.param(load("guess", tell=True), "a generator that raised is over", marks=pytest.mark.whole),
        (load(None), "kind: tools needs at least one function"),
        pytest.param(load(None, tools=("add", "add")), "two tools are called 'add'", marks=pytest.mark.whole),
        pytest.param(load(None, tools=("guess",)), "parameter 'prompt' has no type", marks=pytest.mark.whole),
    ],
)
def test_what_is_no_environment_is_refused_at_the_start(what, message):
    subject = EnvironmentPool(what)
    with pytest.raises(RecipeError, match=message):
        subject.start()


def test_a_dropped_question_is_never_answered(pool):
    subject = pool("guess")
    subject.ask(question(0))
    subject.drop(Key("train", 0, 0))
    (answer,) = ask(subject, question(1))
    assert answer.key.group == 1
    assert subject.poll(0.2) == []


@pytest.mark.parametrize(("pace", "at_once"), [(0.0, 20), (0.01, 6), (0.06, 1)])
def test_a_synchronous_environment_has_as_many_questions_as_it_answers_in_fifty_milliseconds(pool, pace, at_once):
    subject = pool("guess")
    ask(subject, question(99))
    (worker,) = subject._workers
    worker.pace = pace
    questions = [question(n) for n in range(20)]
    for one in questions:
        subject.ask(one)
    assert (len(worker.sent), len(worker.queue)) == (at_once, 20 - at_once)
    found = set()
    while len(found) < 20:
        found |= {answer.key for answer in subject.poll(None)}
    assert not worker.sent
    assert not worker.queue


def test_the_time_of_a_question_begins_when_the_one_before_it_was_answered(pool):
    subject = pool("guess")
    ask(subject, question(99))
    (worker,) = subject._workers
    worker.pace = 0.0
    for n in range(3):
        subject.ask(question(n))
    _, *behind = worker.sent.values()
    for pending in behind:
        pending.since = float("-inf")  # sent long ago, and not at work
    found = {}
    while len(found) < 3:
        found |= {answer.key: answer.failure for answer in subject.poll(None)}
    assert set(found.values()) == {None}
    assert subject.restarts == 0


def test_a_worker_that_ends_costs_a_try_of_the_question_at_work_alone(pool):
    subject = pool("Bad")
    ask(subject, question(99, turn="a", answer="good"))
    subject._workers[0].pace = 0.0
    for n, answer in enumerate(["exit", "good", "good"]):
        subject.ask(question(n, turn="a", answer=answer))
    assert len(subject._workers[0].sent) == 3
    while not subject.restarts:
        subject.poll(0.05)
    (worker,) = subject._workers
    assert {one.key.group: one.tries for one in [*worker.sent.values(), *worker.queue]} == {0: 1, 1: 0, 2: 0}


def test_where_every_try_ends_its_worker_the_pool_gives_up(pool, monkeypatch):
    monkeypatch.setattr("dapo.environments.pool.MOST_ENDS", 5)
    subject = pool("Bad")
    for number in range(3):  # each ends three workers, and an answer begins the count anew
        (lost,) = ask(subject, question(number, turn="a", answer="exit"))
        assert lost.failure.startswith("crash")
        ask(subject, question(10 + number, turn="a", answer="good"))
    ask(subject, question(8, turn="a", answer="exit"))
    with pytest.raises(EpisodeError, match="5 workers for environments ended one after another"):
        ask(subject, question(9, turn="a", answer="exit"))


def test_an_answer_that_nobody_waits_for_any_more_closes_nothing(pool):
    """The episode was dropped and begun again while its last question, which ended it, was still at work."""
    subject = pool("guess", args={"most": 2})
    ask(subject, question(99))
    subject._workers[0].pace = 0.0  # so all of these are sent before an answer is heard
    subject.ask(question(turn="7"))
    subject.drop(Key("train", 0, 0))
    (wrong,) = ask(subject, question(turn="6"))
    assert said(wrong) == ["no"]
    (right,) = ask(subject, question(past=["6"], turn="7"))
    assert (right.reply.done, right.replayed) == (True, None)
