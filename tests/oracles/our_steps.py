"""The same whole steps by us: ``dapo.train`` and ``dapo.sft`` as a user calls them, over rollouts that are played back.

Everything between a finished response and the next weights is the program's own: collector, shaping, advantages, token
weights, learner, optimiser, schedule, and the weights that are published.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from steps import EOS, GROUP, LIMIT, PROMPTS, SHORT, make_examples, mask_of, sketch, text, weights_of
from steps import STEPS as TRAINING_STEPS

import dapo
from dapo.api.recipe import ask
from dapo.checkpoint.store import CheckpointStore
from dapo.config.load import recipe_from_dict
from dapo.observe.console import Console
from dapo.run.given import Given
from dapo.run.model import make_model
from dapo.run.reinforcement import reward_session
from dapo.types.batch import Response, Score
from dapo.types.enums import FinishReason


class Playback:
    """An engine whose responses were recorded: group n of the run is group n of the record. Shares the learner's
    weights, and keeps a copy of each version that it is given."""

    shares_weights = True
    capacity = PROMPTS * GROUP
    clock = version = 0

    def __init__(self, groups: list[dict], model: Any) -> None:
        self.groups, self.model, self.asked, self.published = groups, model, [], []

    def submit(self, requests):
        self.asked += requests

    def poll(self, timeout=None):
        asked, self.asked = self.asked, []
        self.clock += bool(asked)
        return [self._event(request) for request in sorted(asked, key=lambda request: request.key)]

    def _event(self, request):
        group, sample = self.groups[request.key.group], request.key.sample
        assert request.prompt_ids.tolist() == group["prompt"]
        first = 0 if request.prefix is None else len(request.prefix)
        own = mask_of(group)[sample][first:]
        last = first + (own.index(0) if 0 in own else len(own))  # of this turn
        turn = np.array(group["responses"][sample][first:last], dtype=np.int64)
        return Response(
            turn,
            np.array(group["sampler_logprobs"][sample][first:last], dtype=np.float32),
            np.full(len(turn), self.version, dtype=np.int32),
            FinishReason.STOP if turn[-1] == EOS else FinishReason.LENGTH,
            key=request.key,
            tick=self.clock,
        )

    def load(self, ticket, in_flight="abort"):
        self.version = ticket.version
        self.published.append(weights_of(self.model))

    def abort(self, keys=None):
        """Take back nothing: an episode that ended is let go, and the others stay."""
        assert not [request for request in self.asked if keys is None or request.key in keys]
        return []

    def stats(self):
        return dict.fromkeys(
            ("decode_steps", "generated_tokens", "prefill_tokens", "slot_steps", "busy_slot_steps"), 0.0
        )

    def checksums(self):
        return None

    def sleep(self):
        assert not self.asked

    def close(self):
        self.asked = []


def replying(prompt, rng):
    """An environment that answers a short turn with the reply of its group, and ends the episode at any other."""
    turn = yield ""
    if len(turn.text.split()) < SHORT:
        yield prompt.extra["reply"]
    return {}


class Recorded:
    """A scorer that knows the rewards."""

    quick = True

    def __init__(self, groups: list[dict], factor: float) -> None:
        self.groups, self.factor, self.done = groups, factor, []

    def submit(self, key, prompt, completion):
        value = self.factor * self.groups[key.group]["rewards"][key.sample]
        self.done.append((key, Score({"accuracy": value}, value)))

    def poll(self, timeout=None):
        done, self.done = self.done, []
        return done

    def close(self):
        self.done = []


class Listener:
    """A recorder that keeps each step's metrics and shows nothing."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    def step(self, step, metrics, finished, traces):
        self.rows.append(dict(metrics))

    def traced(self, finished):
        return ()

    def state(self):
        return {}

    def __getattr__(self, name):
        return lambda *args, **kwargs: None


_ANY = {"data": {"train": [{"task": "signed_sum"}]}, "rewards": [{"name": "accuracy", "kind": "exact"}]}


def recipe_settings(ours: dict[str, Any], model: Path, groups: list[dict], folder: Path) -> dict[str, Any]:
    """Arguments of ``dapo.train``, but for the parts that are played back."""
    return {
        "model": str(model),
        "run": {"dir": str(folder), "name": "steps"},
        "logging.console": "quiet",
        "data.shuffle": False,
        "validation.every": 0,
        "checkpoint.every": 0,
        "rollout.prompts_per_step": PROMPTS,
        "rollout.group_size": GROUP,
        "rollout.max_response_tokens": LIMIT,
        "trainer.steps": TRAINING_STEPS,
        "rewards": [{"name": "accuracy", "kind": "exact"}],
        "train": [
            {"problem": text(group["prompt"]), "answer": str(n), "reply": text(group.get("reply", []))}
            for n, group in enumerate(groups)
        ],
        **({"environment": {"kind": replying, "lag": 0}, "run.reward_workers": 1} if "reply" in groups[0] else {}),
        **ours,
    }


@contextmanager
def cheaply(model: Path) -> Iterator[None]:
    """What costs more than a step of this model is left out: a recipe's text, and reading the weights each time."""
    with Console("quiet") as console:
        loaded = make_model(recipe_from_dict({"model": {"path": str(model)}, **_ANY}).recipe, console)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dapo.config.load.to_yaml", lambda *_: "")
        patch.setattr("dapo.config.load.dump_resolved", lambda *_: "")
        patch.setattr("dapo.run.reinforcement.make_model", lambda *_: deepcopy(loaded))
        yield


def answer(ours: dict[str, Any], factor: float, model: Path, rollouts: list[list[dict]], folder: Path) -> dict:
    """By training step: means over its optimiser steps, and what has become of the weights since the start.

    The loop and all its parts as ``dapo.train`` composes them; nothing of the run is written but its checkpoint.
    """
    groups = [group for step in rollouts for group in step]
    settings = recipe_settings(ours, model, groups, folder)
    recipe = ask(None, rewards=settings.pop("rewards"), train=settings.pop("train"), settings=settings).loaded.recipe
    given = Given(engine=lambda context: Playback(groups, context.model), scorer=Recorded(groups, factor))
    listener = Listener()
    with Console("quiet") as console:
        session = reward_session(recipe, console, given=given)
        try:
            trainer = session.trainer(listener, CheckpointStore(folder / "checkpoints"))
            for _ in trainer.each_step():
                pass
            assert trainer.finished
        finally:
            session.close()
    return _found(listener.rows, session.parts.engine.published)


def train(ours: dict[str, Any], factor: float, model: Path, rollouts: list[list[dict]], folder: Path) -> dict:
    """``answer`` by the whole program."""
    groups = [group for step in rollouts for group in step]
    made: list[Playback] = []

    def engine(context):
        made.append(Playback(groups, context.model))
        return made[0]

    run = dapo.train(engine=engine, scorer=Recorded(groups, factor), **recipe_settings(ours, model, groups, folder))
    assert run.finished
    return _found(run.metrics, made[0].published)


def imitate(ours: dict[str, Any], model: Path, folder: Path) -> dict:
    """The same of a supervised run by the whole program; its weights are those of its checkpoints."""
    run = dapo.sft(
        model=str(model),
        train=make_examples(),
        **{
            "run": {"dir": str(folder), "name": "imitation"},
            "logging.console": "quiet",
            "data.shuffle": False,
            "checkpoint.every": 1,
            "checkpoint.keep": 100,
            "sft.export": False,
            **ours,
        },
    )
    assert run.finished
    saved = [run.path / "checkpoints" / f"step_{step:06d}" / "learner" for step in run.checkpoints]
    weights = [load_file(model / "model.safetensors")]
    for place in saved:
        tensors = load_file(place / "rank-00000-of-00001.safetensors")
        weights.append({n.removeprefix("model/"): value for n, value in tensors.items() if n.startswith("model/")})
    return _found(run.metrics, [{name: value.astype(np.float64) for name, value in w.items()} for w in weights])


def _found(metrics: Sequence[Mapping[str, float]], weights: Sequence[dict]) -> dict:
    rows = [row for row in metrics if "train/loss" in row]
    assert len(weights) == len(rows) + 1
    return {
        "loss": [row["train/loss"] for row in rows],
        "grad_norm": [row["train/grad_norm"] for row in rows],
        "update": [sketch(weights[0], after) for after in weights[1:]],
    }
