"""``learner.router_replay``: what a training step's passes repeat, what they count, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from expert_models import save_experts
from learner_here import LearnerHere
from learner_rows import make_algorithm, make_groups, rows_of

from dapo.algorithms.objective import clip_objective
from dapo.config import schema
from dapo.engines.embedded import EmbeddedEngine
from dapo.errors import LearnerError
from dapo.learner.experts import load_stats
from dapo.metrics.stats import values
from dapo.models.load import load_model
from dapo.models.tiny import make_tiny_model
from dapo.types.batch import Key, LearnStep, Response, Row, SampleRequest, SamplingParams
from dapo.types.enums import FinishReason

OBJECTIVE = clip_objective(low=0.2, high=0.28)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_experts(tmp_path_factory.mktemp("experts") / "model")


def learner_of(folder, replay, *, dtype="float32", **options):
    settings = schema.LearnerSection(router_replay=replay, microbatch_tokens=64, **options)
    return LearnerHere(load_model(folder, device="cpu", dtype=dtype), OBJECTIVE, settings, 1.0)


def minibatches(count=2):
    return [
        [replace(row, group=row.group + 10 * number) for row in rows_of(make_groups(number, 2, 3), make_algorithm())]
        for number in range(count)
    ]


def learned(learner, parts, rate=3e-2, **options):
    step = LearnStep(parts, [rate] * len(parts), 0, **options)
    return values(learner.learn(step).result().stats)


def test_loads_by_hand():
    """Layer one: 12 choices of 4 experts, a mean of 3. Layer two: one expert has 6 of 12, and one none."""
    found = values(load_stats(torch.tensor([[3, 3, 2, 4], [6, 0, 3, 3]])))
    assert found == {"train/expert_load_max": 2.0, "train/experts_unused": 1 / 8}


def test_loads_count_every_token_of_a_response_once(folder, monkeypatch):
    """All but its last token, from which nothing is predicted; prompts are computed as often as passes want."""
    seen = []
    from dapo.learner import experts

    right = experts.load_stats
    monkeypatch.setattr(experts, "load_stats", lambda loads: seen.append(loads.clone()) or right(loads))
    parts = minibatches()
    found = learned(learner_of(folder, "off"), parts, ratio_against="learner")
    rows = [row for part in parts for row in part]
    tokens = sum(len(row.token_ids) - 1 for row in rows)
    assert seen[0].sum(1).tolist() == [2 * tokens] * 2
    assert 1 <= found["train/expert_load_max"] <= 8
    assert "train/routes_replayed" not in found


def test_the_second_minibatch_repeats_the_passes_before_the_first(folder):
    """Large steps move the routers: without a replay the second minibatch takes other experts than it was rated by."""
    found = learned(learner_of(folder, "learner"), minibatches(), ratio_against="learner")
    assert found["train/routes_replayed"] == 1.0
    assert 0.01 < found["train/routes_changed"] < 1


def test_a_second_epoch_repeats_the_first(folder):
    """With one minibatch the first pass decides, for which nothing is repeated."""
    (part,) = minibatches(1)
    found = learned(learner_of(folder, "learner"), [part, part], ratio_against="learner", epochs=2)
    assert found["train/routes_replayed"] == 0.5


def test_replay_changes_nothing_while_weights_stay(folder):
    """Bit for bit: one optimizer step whose passes repeat what the same weights chose."""
    (part,) = minibatches(1)
    states = []
    for replay in ("off", "learner"):
        learner = learner_of(folder, replay)
        halves = [part[:3], part[3:]]
        learned(learner, halves, rate=0.0, ratio_against="learner")
        found = learned(learner, [part], ratio_against="learner")
        states.append(({k: v.clone() for k, v in learner.loaded.model.state_dict().items()}, found))
    (off, stats), (repeated, again) = states
    assert all(torch.equal(off[name], repeated[name]) for name in off)
    for key, value in stats.items():
        assert again[key] == value or np.isnan(value), key


def sampled(engine, prompts, tokens=16, prefix=None):
    requests = [
        SampleRequest(Key("train", group, sample), prompt, SamplingParams(tokens, stop_token_ids=(1,)),
                      seed=100 * group + sample, prefix=None if prefix is None else prefix[group, sample])
        for group, prompt in enumerate(prompts) for sample in range(2)
    ]  # fmt: skip
    engine.submit(requests)
    ended = []
    while len(ended) < len(requests):
        ended += engine.poll()
    return {(event.key.group, event.key.sample): event for event in ended}


def prompts_of(count=3):
    random = np.random.default_rng(0)
    return [random.integers(3, 78, length) for length in random.integers(3, 9, count)]


def row_of(event, prompt, **options) -> Row:
    given = {"extra": dict(event.extra), "versions": event.versions} | options
    tokens = len(event.token_ids)
    return Row(event.key.group, prompt, event.token_ids, event.key.sample, np.ones(tokens, bool), event.logprobs,
               loss_weight=0.01, advantage=1.0, **given)  # fmt: skip


def test_an_engine_gives_the_routes_of_all_but_the_newest_token(folder):
    """They are those of the same tokens in one forward pass; the order in which requests are seated changes nothing."""
    loaded, prompts = load_model(folder, device="cpu", attention_mode="padded"), prompts_of()
    engine = EmbeddedEngine(loaded, slots=2, record_routes=True)
    for (group, _), event in sampled(engine, prompts).items():
        ids = np.concatenate([prompts[group], event.token_ids])
        with torch.no_grad(), loaded.routing.following() as made:
            loaded.decoder(input_ids=torch.from_numpy(ids)[None, :-1])
        routes = event.extra["routes"]
        assert routes.dtype == np.uint8
        np.testing.assert_array_equal(np.sort(routes[:-1]), np.sort(made.routes().numpy()))
        assert not routes[-1].any()


def test_more_experts_than_a_byte_counts(tmp_path):
    save_experts(tmp_path, num_experts=256, moe_intermediate_size=4)
    event = sampled(EmbeddedEngine(load_model(tmp_path, device="cpu"), record_routes=True), prompts_of(1))[0, 0]
    assert event.extra["routes"].dtype == np.int16


def test_a_low_precision_sampler_is_nearer_with_its_routes(tmp_path):
    """bfloat16 against float32: single tokens are off by over a nat where an expert is another one."""
    save_experts(tmp_path, seed=3)
    prompts = prompts_of(8)
    events = sampled(
        EmbeddedEngine(load_model(tmp_path, device="cpu", dtype="bfloat16"), record_routes=True), prompts, 40
    )
    rows = [row_of(event, prompts[group]) for (group, _), event in events.items()]
    gaps = {}
    for replay in ("off", "sampler"):
        found = learned(learner_of(tmp_path, replay), [rows], rate=0.0, ratio_against="sampler")
        gaps[replay] = found["train/gap_max"], found["train/gap_mean"]
    assert found["train/routes_replayed"] == 1.0
    assert 0 < found["train/routes_changed"] < 0.1
    assert gaps["off"][0] > 1
    assert gaps["sampler"][0] < 0.2
    assert gaps["sampler"][1] < gaps["off"][1]


def test_tokens_that_other_weights_routed_anew_are_left_out_and_counted(folder):
    """A response of 4 tokens by version 0 goes on under version 1: its prompt and its prefix are routed anew."""
    prompts = prompts_of(1)
    engine = EmbeddedEngine(load_model(folder, device="cpu"), record_routes=True)
    first = sampled(engine, prompts, 4)
    carried = {key: Response(e.token_ids, e.logprobs, e.versions, extra=e.extra) for key, e in first.items()}
    assert all(e.finish is FinishReason.LENGTH for e in first.values())
    engine.version = 1
    second = sampled(engine, prompts, 12, carried)
    rows, new = [], 0
    for key, event in second.items():
        assert len(event.extra["routes"]) == len(event.token_ids)
        joined = replace(
            event,
            token_ids=np.concatenate([first[key].token_ids, event.token_ids]),
            logprobs=np.concatenate([first[key].logprobs, event.logprobs]),
            versions=np.concatenate([first[key].versions, event.versions]),
            extra={"routes": np.concatenate([first[key].extra["routes"], event.extra["routes"]])},
        )
        new += len(event.token_ids) - 1
        rows.append(row_of(joined, prompts[0]))
    tokens = sum(len(row.token_ids) - 1 for row in rows)
    found = learned(learner_of(folder, "sampler"), [rows])
    assert found["train/routes_replayed"] == pytest.approx(new / tokens)
    same = [replace(row, versions=np.zeros_like(row.versions)) for row in rows]  # the weights did not change
    found = learned(learner_of(folder, "sampler"), [same])
    assert found["train/routes_replayed"] == pytest.approx((tokens - 2) / tokens)  # the newest token of each prefix


@pytest.mark.parametrize(("extra", "said"), [
    ({}, "has no array 'routes' of its engine; set learner.router_replay=off"),
    ({"routes": np.ones((20, 3, 2), np.uint8)}, r"\[20, 3, 2\], and the model has 2 routers that choose 2 of 8"),
    ({"routes": np.full((20, 2, 2), 9, np.uint8)}, "engine and learner run different models"),
])  # fmt: skip
def test_routes_that_do_not_fit_are_refused(folder, extra, said):
    row = rows_of(make_groups(0, 1, 2, length=lambda random: 16), make_algorithm())[0]
    with pytest.raises(LearnerError, match=said):
        learned(learner_of(folder, "sampler"), [[replace(row, extra=extra)]])


@pytest.mark.parametrize("replay", ["learner", "sampler"])
def test_a_dense_model_is_refused(replay, tmp_path):
    make_tiny_model(tmp_path)
    with pytest.raises(LearnerError, match=r"\(LlamaForCausalLM\) has no routers .*router_replay=off"):
        learner_of(tmp_path, replay)
