"""Callbacks hear of everything, change nothing, and fail alone."""

import numpy as np
import pytest

from dapo.errors import CallbackError, RecipeError
from dapo.observe.callbacks import Callbacks, as_callback
from dapo.types.batch import MODEL, Group, Prompt, Response, Score, Turn
from dapo.types.enums import Disposition, FinishReason, Verdict
from dapo.types.events import Callback, CheckpointEvent, EndEvent, StartEvent, StepEvent


class Keeps(Callback):
    def __init__(self, fails_at=None, on_error="warn"):
        self.heard, self.fails_at, self.on_error = [], fails_at, on_error

    def start(self, event):
        self.heard.append(event)

    def step(self, event):
        if event.step == self.fails_at:
            raise ConnectionError("no network")
        self.heard.append(event)

    checkpoint = evaluation = end = start

    def state(self):
        return {"heard": len(self.heard)}


def group():
    ids = np.arange(4)
    made = ids, np.zeros(4, np.float32), np.zeros(4, np.int32)
    turns = (Turn(0, 4, MODEL, "text", facts={"tried": 2.0}),)
    done = Response(*made, FinishReason.LENGTH, "text", extra={"routes": np.zeros(4)}, turns=turns)
    return Group(
        7,
        Prompt("id", "what the model saw", ids, "2 + 2", "4", "sums"),
        [done, done],
        [Score({"accuracy": 1.0}, 1.0), Score({}, reason="timeout")],
        verdict=Verdict.KEPT,
        disposition=Disposition.TRAINED,
        rewards_G=np.array([0.5, np.nan]),
        advantages_G=np.array([1.25, 0.0]),
    )


def started(*callbacks, warned=None, state=None):
    all_of_them = Callbacks(callbacks, (warned if warned is not None else []).append)
    all_of_them.start(StartEvent("r", "folder", 0, 3, {}), state)
    return all_of_them


def test_a_step_is_told_with_its_groups():
    keeps = Keeps()
    started(keeps).step(1, {"train/loss": 0.5}, [group()])
    event = keeps.heard[-1]
    assert isinstance(event, StepEvent)
    (seen,) = event.groups
    assert (seen.id, seen.prompt.problem, seen.verdict, seen.disposition) == (7, "2 + 2", "kept", "trained")
    (first, score), (_, failed) = seen.pairs()
    assert (first.text, first.model_tokens, first.truncated, score.accuracy) == ("text", 4, True, 1.0)
    assert (seen.rewards_G[0], seen.advantages_G[0]) == (0.5, 1.25)
    assert (failed.accuracy, failed.reason) == (None, "timeout")


WRITES = {
    "a metric": lambda event: event.metrics.update(loss=1.0),
    "a response": lambda event: setattr(event.groups[0].completions_G[0], "text", "other"),
    "its tokens": lambda event: event.groups[0].completions_G[0].token_ids.sort(),
    "its log-probabilities": lambda event: np.negative(*[event.groups[0].completions_G[0].logprobs] * 2),
    "an engine's array": lambda event: event.groups[0].completions_G[0].extra["routes"].fill(1),
    "a fact of a turn": lambda event: event.groups[0].completions_G[0].turns[0].facts.update(tried=1.0),
    "the responses": lambda event: event.groups[0].completions_G.reverse(),
    "the scores": lambda event: event.groups[0].scores_G.clear(),
    "a score": lambda event: event.groups[0].scores_G[0].values.update(accuracy=0.0),
    "rewards": lambda event: event.groups[0].rewards_G.fill(1.0),
}


@pytest.mark.parametrize("what", WRITES)
def test_what_a_callback_gets_cannot_be_written_to(what):
    keeps, mine = Keeps(), group()
    started(keeps).step(1, {"loss": 0.5}, [mine])
    with pytest.raises((AttributeError, TypeError, ValueError)):
        WRITES[what](keeps.heard[-1])
    assert repr(mine) == repr(group())


def test_what_the_run_changes_later_changes_no_event():
    keeps, mine, metrics = Keeps(), group(), {"loss": 0.5}
    started(keeps).step(1, metrics, [mine])
    metrics["loss"] = 9.0
    mine.verdict, mine.rewards_G = Verdict.ALL_CORRECT, None
    mine.completions_G.clear()
    (seen,) = keeps.heard[-1].groups
    assert (keeps.heard[-1].metrics["loss"], seen.verdict, len(seen.completions_G)) == (0.5, "kept", 2)
    assert seen.rewards_G[0] == 0.5
    mine.completions_G.append(seen.completions_G[0])  # the run's own can be written to as before


def test_one_that_fails_is_named_once_and_left_out_and_the_others_go_on():
    bad, good, warned = Keeps(fails_at=2), Keeps(), []
    callbacks = started(bad, good, warned=warned)
    for step in (1, 2, 3):
        callbacks.step(step, {}, [])
    assert [event.step for event in bad.heard[1:]] == [1]
    assert [event.step for event in good.heard[1:]] == [1, 2, 3]
    assert len(warned) == 1
    assert "Keeps failed (ConnectionError: no network)" in warned[0]


def test_one_that_leaves_as_a_closed_generator_does_has_failed_and_ends_no_run():
    bad, good, warned = Keeps(), Keeps(), []
    callbacks = started(bad, good, warned=warned)

    def leaves(event):
        raise GeneratorExit

    bad.step = bad.end = leaves
    for step in (1, 2):
        callbacks.step(step, {}, [])
    callbacks.end(True)
    assert [type(event).__name__ for event in good.heard] == ["StartEvent", "StepEvent", "StepEvent", "EndEvent"]
    assert len(warned) == 1
    assert "Keeps failed (GeneratorExit" in warned[0]


def test_one_may_want_the_run_to_end_with_it():
    callbacks = started(Keeps(fails_at=1, on_error="stop"))
    with pytest.raises(CallbackError, match="no network"):
        callbacks.step(1, {}, [])


def test_states_are_saved_by_name_and_given_back():
    first, second = Keeps(), Keeps()
    saved = started(first, second).state()
    assert saved == {"Keeps": {"heard": 1}, "Keeps-2": {"heard": 1}}
    again = Keeps()
    started(again, state=saved)
    assert again.heard[0].state == {"heard": 1}


def test_the_end_is_told_once_whatever_it_is():
    keeps = Keeps()
    callbacks = started(keeps)
    callbacks.checkpoint(2, "there")
    with pytest.raises(KeyError), callbacks.ending():
        raise KeyError("broken")
    callbacks.end(True)
    assert keeps.heard[1:] == [CheckpointEvent(2, "there"), EndEvent(0, False, "KeyError: 'broken'")]


def test_the_end_of_a_run_that_never_began_is_told_to_nobody():
    """Whatever ends it before ``start``: a callback closes nothing there that it did not open."""
    first, second, heard = Keeps(), Keeps(on_error="stop"), []
    with pytest.raises(KeyError), Callbacks([first]).ending():
        raise KeyError("broken")
    assert first.heard == []

    def fails(event):
        raise ConnectionError("no network")

    second.start = fails
    third = Keeps()
    third.end = heard.append
    callbacks = Callbacks([first, second, third])
    with pytest.raises(CallbackError), callbacks.ending():
        callbacks.start(StartEvent("r", "folder", 0, 3, {}))
    assert [type(event) for event in first.heard] == [StartEvent, EndEvent]
    assert heard == []


class Has(Keeps):
    """Its state is what it has."""

    def __init__(self, has, **options):
        super().__init__(**options)
        self.has = has

    def state(self):
        if isinstance(self.has, Exception):
            raise self.has
        return self.has


loop = {}
loop["itself"] = loop
UNSAVABLE = [{"seen": {1, 2}}, {("a", 1): 2}, {"at": b"bytes"}, {"text": "\ud800"}, loop, {"a": {"__array__": 1}}, [1]]


@pytest.mark.parametrize("has", UNSAVABLE, ids=lambda has: str(has)[:20].encode("ascii", "replace").decode())
def test_a_state_that_no_checkpoint_can_hold_is_refused_before_training(has):
    with pytest.raises(RecipeError, match=r"the callback Has: state\(\) returned"):
        started(Has(has))


def test_a_state_that_comes_to_be_so_later_is_left_out_and_named_once():
    warned, bad, good = [], Has({"seen": 1}), Keeps()
    callbacks = started(bad, good, warned=warned)
    bad.has = {"seen": {1, 2}}
    assert callbacks.state() == callbacks.state() == {"Keeps": {"heard": 1}}
    assert len(warned) == 1
    assert "Has" in warned[0]
    assert "set" in warned[0]
    callbacks.step(1, {}, [])
    assert len(bad.heard) == 2  # it goes on
    bad.has = {"seen": np.arange(3)}
    assert callbacks.state()["Has"]["seen"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("has", [{"seen": {1, 2}}, OSError("no disk")])
def test_one_that_wants_the_run_to_end_with_it_ends_it_after_the_save(has):
    bad, good = Has({}, on_error="stop"), Keeps()
    callbacks = started(bad, good)
    bad.has = has
    assert callbacks.state() == {"Keeps": {"heard": 1}}
    with pytest.raises(CallbackError, match="Has"):
        callbacks.checkpoint(4, "there")
    assert good.heard[-1] == CheckpointEvent(4, "there")


def test_texts_are_copied_only_for_those_who_read_them():
    class Numbers(Keeps):
        needs_texts = False

    numbers = Numbers()
    started(numbers).step(1, {}, [group()])
    assert numbers.heard[-1].groups == ()


def test_functions_classes_and_objects_are_callbacks_and_the_rest_gets_a_sentence():
    heard = []
    callbacks = started(as_callback(heard.append), as_callback(Keeps))
    callbacks.step(1, {}, [])
    assert [type(event).__name__ for event in heard] == ["StartEvent", "StepEvent"]

    class NoCallback:
        def step(self, event): ...

    with pytest.raises(RecipeError, match=r"class NoCallback\(dapo.Callback\)"):
        as_callback(NoCallback())
    with pytest.raises(RecipeError, match="int is no callback"):
        as_callback(3)
