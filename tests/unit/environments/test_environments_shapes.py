"""Classes of SkyRL-Gym's and TRL's shapes are recognised by their methods and played as they are."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest
import shapes_for_tests as shapes

from dapo.config.load import load_recipe
from dapo.environments import verified
from dapo.environments.call_formats import hermes
from dapo.environments.forms import Episode, form_of
from dapo.environments.shapes import WrongReply, gym_opens
from dapo.errors import RecipeError
from dapo.types.batch import Prompt
from dapo.types.environment import Spoken


def episode(found, **args):
    return Episode(form_of(found, args, [], hermes, max_turns=3), 30.0)


def prompt(answer="56", **columns):
    return Prompt("id", "text", np.array([1, 2]), "7 * 8", answer, "source", columns)


def play(one, given, *texts):
    """Return what is said first, and the replies to these turns."""

    async def through():
        opening = await one.start(given, 5)
        return opening, [await one.step(Spoken(n, text, text, (3,), 90, 2 - n)) for n, text in enumerate(texts)]

    return asyncio.run(through())


def content(said):
    return [(message["role"], message["content"]) for message in said.messages]


def call(name, **arguments):
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def test_a_class_of_skyrl_gym_gets_its_record_and_answers_until_it_is_done():
    one = episode(shapes.Product, hint="Box it.")
    opening, (unboxed, wrong, right) = play(one, prompt(), "56", r"\boxed{54}", r"\boxed{56}")
    assert opening is None
    assert (content(unboxed), unboxed.reward, unboxed.done) == ([("user", "Box it.")], 0.1, False)
    assert content(wrong) == [("user", "'54' is wrong")]
    assert (right.done, right.reward, right.scores) == (True, 1.0, {})
    assert right.facts == {"boxed": 1.0, "turns": 3.0}  # numbers of metadata and get_metrics
    asyncio.run(one.close())


def test_a_record_may_bring_its_own_reward_spec_and_the_limit_of_turns_reaches_the_class():
    one = episode(shapes.Product, hint="")
    _, replies = play(one, prompt("9", reward_spec={"ground_truth": "56"}), r"\boxed{9}", r"\boxed{9}", r"\boxed{9}")
    assert [reply.done for reply in replies] == [False, False, True]
    assert sum(reply.reward for reply in replies) == pytest.approx(0.2)


@pytest.mark.parametrize("name", ["reward_spec", "reward_model"])
def test_the_gold_answer_is_where_classes_of_the_library_look_for_it(name):
    class Gold(shapes.Product):
        def __init__(self, env_config, extras):
            super().__init__(env_config, {**extras, "reward_spec": extras[name]})

    assert play(episode(Gold, hint=""), prompt(), r"\boxed{56}")[1][0].reward == 1.0


@pytest.mark.parametrize(
    ("module", "opens"), [("skyrl_gym.envs.base_text_env", False), ("skyrl_gym.envs.rlm.env", True), ("my_env", True)]
)
def test_an_init_speaks_first_unless_it_is_that_of_the_library_s_base_class(module, opens):
    base = type("Base", (), {"__module__": module, "init": lambda self, prompt: (prompt, {})})
    assert gym_opens(type("Own", (base,), {"__module__": "my_env"})) is opens


def test_messages_that_init_adds_are_said_first_and_a_rewritten_prompt_is_refused():
    opening, _ = play(episode(shapes.Opening, hint=""), prompt())
    assert content(opening) == [("user", "Begin.")]
    with pytest.raises(WrongReply, match="rewrote the prompt"):
        play(episode(shapes.Rewritten, hint=""), prompt())


def test_an_action_that_was_put_in_place_of_the_turn_is_refused():
    assert play(episode(shapes.Replaced, hint=""), prompt(), "5")[1][0].reward == 1.0
    with pytest.raises(WrongReply, match="what was sampled is what trains"):
        play(episode(shapes.Replaced, hint=""), prompt(), "56")


def test_a_limit_brings_the_metrics_of_a_gym_class():
    one = episode(shapes.Product, hint="Box it.")
    play(one, prompt(), "56")
    assert asyncio.run(one.end("tokens")).facts == {"turns": 1.0}


def test_public_methods_of_a_trl_class_are_tools_and_get_reward_ends_its_episode():
    one = episode(shapes.Word)
    assert [tool["function"]["name"] for tool in one.form.abilities.tools] == ["guess"]
    texts = (call("guess", word="cut"), call("guess", word="cat"), call("guess", word="cat"), "done")
    opening, (close, hit, over, last) = play(one, prompt("cat", level=2), *texts)
    assert content(opening) == [("user", "3 letters, 7 * 8")]
    assert (content(close), content(hit)) == ([("tool", "GXG")], [("tool", "GGG")])
    assert "Game over." in content(over)[0][1]
    assert over.tool_errors == 1
    assert (last.done, last.reward) == (True, 1.0)
    assert one.environment.adapted.level == 2


def test_a_limit_asks_a_trl_class_for_its_reward():
    one = episode(shapes.Word)
    play(one, prompt("cat", level=1), call("guess", word="cat"))
    assert asyncio.run(one.end("turns")).reward == 1.0


def test_a_trl_class_without_get_reward_scores_nothing():
    form = form_of(shapes.Unjudged, {}, [], hermes)
    assert (form.kind, form.abilities.scores) == ("trl", False)


def test_a_version_of_verifiers_without_the_classic_classes_is_refused(monkeypatch):
    for found in ("0.4.0", "0.1.9"):
        monkeypatch.setattr(verified, "version", lambda name, found=found: found)
        with pytest.raises(RecipeError, match=f"verifiers {found} lacks"):
            verified.load_verified("any", {}, None)


def test_openenv_servers_are_refused_with_the_way_to_them():
    with pytest.raises(RecipeError, match="class around its client"):
        load_recipe("quickstart", ["environment.kind=openenv"])


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (shapes.BothGyms, "has `init`, `reset`, `step` of"),
        (shapes.OursAndTheirs, "has `init`, `start`, `step` of"),
        (shapes.Gymnasium, "has `reset`, `step` of"),
        (shapes.NoTools, "no public method"),
        (shapes.Nothing, "has none of"),
    ],
)
def test_a_class_of_no_shape_or_of_two_is_refused(found, reason):
    with pytest.raises(RecipeError, match=reason):
        form_of(found, {}, [], hermes)
