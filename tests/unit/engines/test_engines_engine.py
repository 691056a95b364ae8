"""The engines against transformers' own generation and teacher forcing, and against themselves."""

from __future__ import annotations

import gc
from dataclasses import replace

import numpy as np
import pytest
import torch
from quick import quick
from tickets import in_folder, to_model, to_tensors

from dapo.engines import decoders, fused
from dapo.engines.embedded import EmbeddedEngine
from dapo.engines.generate import GenerateEngine
from dapo.engines.sampling import truncate
from dapo.errors import EngineError
from dapo.models.weight_files import model_tensors
from dapo.types.batch import Response, Ticket
from dapo.types.enums import FinishReason
from dapo.weights.shared import offered

ARCHITECTURES = [
    ("llama", {}),
    ("llama", {"num_key_value_heads": 4, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False}),
    ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 100.0}}),
    ("qwen2", {"num_key_value_heads": 1}),
    ("qwen3", {"head_dim": 16}),
    ("qwen3", {"tie_word_embeddings": False}),
]
FEW = [ARCHITECTURES[0], ARCHITECTURES[4]]
KINDS = ["fused", "generic", "generate"]


def make(kind: str, loaded, monkeypatch, slots=None, **options):
    if kind == "generate":
        return GenerateEngine(loaded, slots=slots, **options)
    if kind == "generic":
        monkeypatch.setattr(fused, "why_not", lambda model: "switched off by the test")
    engine = EmbeddedEngine(loaded, slots=slots, **options)
    assert engine.decoder.name == kind
    return engine


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("architecture", "config"), quick(ARCHITECTURES, FEW))
def test_greedy_equals_transformers_generation(kind, architecture, config, model, help, monkeypatch):
    loaded = model(architecture, **config)
    engine = make(kind, loaded, monkeypatch, slots=4)
    engine.submit([help.request(g, max_tokens=30, temperature=0.0) for g in range(7)])
    for (group, _), event in help.drain(engine).items():
        ids = torch.tensor(help.prompt(group))[None]
        own = loaded.model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=30, eos_token_id=1, pad_token_id=0
        )
        assert event.token_ids.tolist() == own[0, ids.shape[1] :].tolist()
        assert (event.finish is FinishReason.STOP) == (event.token_ids[-1] == 1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("architecture", "config"), quick(ARCHITECTURES, FEW))
def test_logprobs_equal_teacher_forcing(kind, architecture, config, model, help, monkeypatch):
    loaded = model(architecture, **config)
    engine = make(kind, loaded, monkeypatch, slots=5)
    engine.submit([help.request(g, i, max_tokens=90, temperature=0.8) for g in range(3) for i in range(3)])
    events = help.drain(engine)
    assert len(events) == 9
    for (group, _), event in events.items():
        table = help.forced_logprobs(loaded, help.prompt(group), event.token_ids, 0.8)
        expected = table.gather(-1, torch.from_numpy(event.token_ids)[:, None])[:, 0]
        np.testing.assert_allclose(event.logprobs, expected.numpy(), atol=2e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_truncated_logprobs_are_renormalised(kind, model, help, monkeypatch):
    loaded = model("llama")
    engine = make(kind, loaded, monkeypatch)
    engine.submit([help.request(g, max_tokens=10, top_k=3, stop_token_ids=()) for g in range(6)])
    for (group, _), event in help.drain(engine).items():
        table = help.forced_logprobs(loaded, help.prompt(group), event.token_ids)
        top = table.topk(3)
        for t, token in enumerate(event.token_ids):
            assert token in top.indices[t]
            expected = table[t, token] - top.values[t].logsumexp(-1)
            assert event.logprobs[t] == pytest.approx(float(expected), abs=1e-5)


@pytest.mark.parametrize("kind", quick(KINDS, ["fused"]))
def test_tokens_do_not_depend_on_slots_order_or_company(kind, model, help, monkeypatch):
    loaded = model("qwen3")
    requests = [help.request(g, i, max_tokens=5 + 7 * g) for g in range(5) for i in range(4)]
    reference = None
    for slots, order in ((64, 1), (3, 1), (7, -1), (1, 1)):
        engine = make(kind, loaded, monkeypatch, slots=slots)
        engine.submit(requests[::order])
        tokens = {key: event.token_ids.tolist() for key, event in help.drain(engine).items()}
        reference = reference or tokens
        assert tokens == reference
    assert len({tuple(tokens) for tokens in reference.values()}) > 10


def test_engines_draw_the_same_tokens(model, help, monkeypatch):
    found = []
    for kind in KINDS:
        engine = make(kind, model("qwen2"), monkeypatch if kind == "generic" else pytest.MonkeyPatch(), slots=6)
        monkeypatch.undo()
        engine.submit([help.request(g, i, max_tokens=20, top_p=0.9) for g in range(4) for i in range(3)])
        found.append({key: event.token_ids.tolist() for key, event in help.drain(engine).items()})
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("kind", KINDS)
def test_a_prefix_continues_to_the_same_tokens(kind, model, help, monkeypatch):
    engine = make(kind, model("llama"), monkeypatch, slots=4)
    plain = [help.request(g, max_tokens=40, stop_token_ids=()) for g in range(4)]
    engine.submit(plain)
    whole = help.drain(engine)
    cuts = {0: 1, 1: 17, 2: 39, 3: 25}
    engine.submit(
        [
            help.request(
                g,
                max_tokens=40,
                stop_token_ids=(),
                prefix=Response(whole[g, 0].token_ids[:n], whole[g, 0].logprobs[:n], whole[g, 0].versions[:n]),
            )
            for g, n in cuts.items()
        ]
    )
    for (group, _), event in help.drain(engine).items():
        assert event.token_ids.tolist() == whole[group, 0].token_ids[cuts[group] :].tolist()
        np.testing.assert_allclose(event.logprobs, whole[group, 0].logprobs[cuts[group] :], atol=2e-5)
        assert event.finish is FinishReason.LENGTH


@pytest.mark.parametrize("kind", KINDS)
def test_repeating_a_run_gives_the_same_bits(kind, model, help, monkeypatch):
    runs = []
    for _ in range(2):
        engine = make(kind, model("qwen3"), monkeypatch, slots=5)
        engine.submit([help.request(g, i, max_tokens=25) for g in range(4) for i in range(3)])
        runs.append([(e.key, e.tick, e.token_ids.tobytes(), e.logprobs.tobytes()) for e in help.drain(engine).values()])
    assert runs[0] == runs[1]


@pytest.mark.parametrize("kind", KINDS)
def test_stop_tokens_and_limits(kind, model, help, monkeypatch):
    engine = make(kind, model("llama"), monkeypatch)
    engine.submit([help.request(0, max_tokens=20, stop_token_ids=(), temperature=0.0)])
    free = help.drain(engine)[0, 0].token_ids
    second = int(free[1])
    assert second != free[0]
    partial = Response(free[:2], np.zeros(2, np.float32), np.zeros(2, np.int32))
    cases = {
        1: ({"max_tokens": 20, "stop_token_ids": (39, second)}, 2, FinishReason.STOP),
        2: ({"max_tokens": 2, "stop_token_ids": (second,)}, 2, FinishReason.STOP),  # at the last position
        3: ({"max_tokens": 2, "stop_token_ids": ()}, 2, FinishReason.LENGTH),
        4: ({"max_tokens": 1, "stop_token_ids": (second,)}, 1, FinishReason.LENGTH),
        5: ({"max_tokens": 2, "stop_token_ids": (), "prefix": partial}, 0, FinishReason.LENGTH),
        6: ({"max_tokens": 9, "stop_token_ids": (second,), "prefix": partial}, 0, FinishReason.STOP),
        7: ({"max_tokens": 3, "stop_token_ids": (), "prefix": partial}, 1, FinishReason.LENGTH),
    }
    engine.submit([help.request(g, prompt_ids=help.prompt(0), temperature=0.0, **case[0]) for g, case in cases.items()])
    events = help.drain(engine)
    for group, (_, length, finish) in cases.items():
        assert (len(events[group, 0].token_ids), events[group, 0].finish) == (length, finish), group
    assert events[7, 0].token_ids[0] == free[2]


def test_one_batch_may_mix_laws(model, help):
    loaded = model("llama")
    engine = EmbeddedEngine(loaded)
    sampled = [{"temperature": 0.0}, {"temperature": 0.5}, {"top_p": 0.5}, {}]
    engine.submit([help.request(g, i, max_tokens=15, **options) for g in range(3) for i, options in enumerate(sampled)])
    together = help.drain(engine)
    for i, options in enumerate(sampled):
        engine.submit([help.request(g, i, max_tokens=15, **options) for g in range(3)])
        for key, event in help.drain(engine).items():
            assert event.token_ids.tolist() == together[key].token_ids.tolist()


def test_poll_returns_at_the_first_end_in_order_of_tick_and_key(model, help):
    engine = EmbeddedEngine(model("llama"), slots=8)
    limits = {(3, 0): 4, (1, 1): 4, (1, 0): 9, (2, 0): 1}
    engine.submit([help.request(g, i, max_tokens=n, stop_token_ids=()) for (g, i), n in limits.items()])
    polls = [[(event.key, event.tick) for event in engine.poll()] for _ in range(3)]
    assert polls == [[((2, 0), 0)], [((1, 1), 3), ((3, 0), 3)], [((1, 0), 8)]]
    assert engine.poll() == []
    assert engine.clock == 8


def test_a_groups_prompt_is_computed_once_even_when_slots_are_few(model, help):
    engine = EmbeddedEngine(model("llama"), slots=3)
    engine.submit([help.request(0, i, max_tokens=6) for i in range(8)] + [help.request(1, i) for i in range(8)])
    help.drain(engine)
    assert engine.stats()["prefill_tokens"] == len(help.prompt(0)) + len(help.prompt(1))


def test_counters(model, help):
    engine = EmbeddedEngine(model("llama"), slots=4)
    engine.submit([help.request(0, i, max_tokens=n, stop_token_ids=()) for i, n in enumerate((3, 3, 5))])
    help.drain(engine)
    assert engine.stats() == {
        "decode_steps": 4.0,
        "generated_tokens": 11.0,
        "prefill_tokens": float(len(help.prompt(0))),
        "slot_steps": 16.0,
        "busy_slot_steps": 8.0,
    }


def test_smaller_priority_goes_first(model, help):
    from dataclasses import replace

    engine = EmbeddedEngine(model("llama"), slots=1)
    requests = [help.request(g, max_tokens=3, stop_token_ids=()) for g in range(3)]
    engine.submit([replace(r, priority=p) for r, p in zip(requests, (1, 1, 0), strict=True)])
    assert [event.key[0] for _ in range(3) for event in engine.poll()] == [2, 0, 1]


def test_abort_returns_what_there_is_and_frees_the_slot(model, help):
    engine = EmbeddedEngine(model("llama"), slots=3)
    limits = (4, 50, 50, 50)
    engine.submit([help.request(g, max_tokens=n, stop_token_ids=()) for g, n in enumerate(limits)])
    assert [event.key for event in engine.poll()] == [(0, 0)]
    events = engine.abort([(1, 0), (3, 0), (9, 9)])
    assert [(event.key, len(event.token_ids), event.finish) for event in events] == [
        ((1, 0), 4, None),
        ((3, 0), 0, None),
    ]
    rest = help.drain(engine)
    assert set(rest) == {(2, 0)}
    assert engine.abort() == []
    engine.submit([help.request(1, max_tokens=50, stop_token_ids=())])  # the key is free again
    whole = help.drain(engine)[1, 0]
    assert whole.token_ids[:4].tolist() == events[0].token_ids.tolist()


def test_abort_gives_back_what_ended_and_was_not_polled(model, help):
    engine = EmbeddedEngine(model("llama"), slots=3)
    whole = Response(np.arange(2, 14), np.zeros(12, np.float32), np.zeros(12, np.int32))
    engine.submit([help.request(0, prefix=whole), help.request(1, prefix=whole), help.request(2)])  # 12 is the limit
    (one,) = engine.abort([(1, 0)])
    assert (one.key, one.finish, len(one.token_ids)) == ((1, 0), FinishReason.LENGTH, 0)
    rest = engine.abort()
    assert [(event.key, event.finish) for event in rest] == [
        ((0, 0), FinishReason.LENGTH),
        ((2, 0), None),
    ]
    assert engine.poll() == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shares", [True, False])
@pytest.mark.parametrize("tied", [True, False])
def test_publish_takes_the_new_weights(kind, shares, tied, fresh, help, monkeypatch):
    loaded = fresh("qwen3", tie_word_embeddings=tied)
    learner = loaded if shares else fresh("qwen3", tie_word_embeddings=tied)
    engine = make(kind, loaded, monkeypatch, shares_weights=shares)
    engine.submit([help.request(0, max_tokens=8)])
    before = help.drain(engine)[0, 0]
    with torch.no_grad():
        for parameter in learner.model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    engine.load(to_model(7, learner.model))
    engine.submit([help.request(g, max_tokens=8) for g in range(3)])
    events = help.drain(engine)
    for (group, _), event in events.items():
        table = help.forced_logprobs(learner, help.prompt(group), event.token_ids)
        expected = table.gather(-1, torch.from_numpy(event.token_ids)[:, None])[:, 0]
        np.testing.assert_allclose(event.logprobs, expected.numpy(), atol=2e-5)
        assert set(event.versions.tolist()) == {7}
    assert set(before.versions.tolist()) == {0}
    assert events[0, 0].logprobs[0] != before.logprobs[0]


@pytest.mark.parametrize("kind", KINDS)
def test_weights_come_through_a_folder_too(kind, fresh, help, monkeypatch, tmp_path):
    engine, learner = make(kind, fresh("llama"), monkeypatch, shares_weights=False), fresh("llama")
    with torch.no_grad():
        learner.model.lm_head.weight.mul_(1.5)
    engine.load(in_folder(2, model_tensors(learner.model), tmp_path))
    engine.submit([help.request(0)])
    event = help.drain(engine)[0, 0]
    table = help.forced_logprobs(learner, help.prompt(0), event.token_ids)
    expected = table.gather(-1, torch.from_numpy(event.token_ids)[:, None])[:, 0]
    np.testing.assert_allclose(event.logprobs, expected.numpy(), atol=2e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_ticket_that_leads_elsewhere_is_refused_by_name(kind, fresh, monkeypatch, tmp_path):
    loaded, other = fresh("llama"), fresh("llama")
    sharing = make(kind, loaded, monkeypatch)
    for ticket in (to_model(3, other.model), in_folder(3, model_tensors(loaded.model), tmp_path)):
        with pytest.raises(EngineError, match=f"version 3 leads to {ticket.route} .*learner's own tensors"):
            sharing.load(ticket)
    own = make(kind, fresh("llama"), monkeypatch, shares_weights=False)
    with pytest.raises(EngineError, match="route 'pigeon'; this engine takes 'shared' or 'folder'"):
        own.load(Ticket(3, "pigeon", "roof", ()))
    with pytest.raises(EngineError, match="no model is offered at 'nowhere'"):
        own.load(Ticket(3, "shared", "nowhere", ()))
    with pytest.raises(EngineError, match=r"differ in 1 names \(model.embed_tokens.weight"):
        own.load(replace(to_model(3, other.model), names=tuple(model_tensors(other.model))[1:]))
    assert sharing.version == own.version == 0


def test_an_offer_ends_with_its_model(fresh):
    loaded = fresh("llama")
    ticket = to_model(1, loaded.model)
    assert offered(ticket) is loaded.model
    del loaded
    gc.collect()
    with pytest.raises(EngineError, match="its learner is gone"):
        offered(ticket)


def test_kept_responses_carry_the_version_of_each_token(fresh, help):
    loaded = fresh("llama")
    engine = EmbeddedEngine(loaded, slots=2)
    engine.submit([help.request(g, max_tokens=n, stop_token_ids=()) for g, n in enumerate((3, 10, 5))])
    engine.poll()
    with pytest.raises(EngineError, match="abort"):
        engine.load(to_model(1, loaded.model))
    engine.load(to_model(1, loaded.model), in_flight="keep")
    events = help.drain(engine)
    assert events[1, 0].versions.tolist() == [0] * 3 + [1] * 7
    assert events[2, 0].versions.tolist() == [1] * 5


@pytest.mark.parametrize("recomputes", [True, False])
def test_a_kept_load_counts_what_it_computes_anew_as_prefill(recomputes, fresh, help):
    loaded = fresh("llama")
    engine = EmbeddedEngine(loaded, slots=3, recompute_cache=recomputes)
    requests = [help.request(g, max_tokens=n, stop_token_ids=()) for g, n in enumerate((3, 10, 8))]
    engine.submit(requests)
    engine.poll()
    before = engine.stats()
    engine.load(to_model(1, loaded.model), in_flight="keep")
    counted = {name: value - before[name] for name, value in engine.stats().items()}
    live = [len(request.prompt_ids) + 2 for request in requests[1:]]  # the third token enters with the next step
    assert counted == dict.fromkeys(before, 0) | {"prefill_tokens": recomputes * sum(live)}


def test_a_waiting_sibling_starts_from_the_new_weights(fresh, help):
    loaded = fresh("llama")
    engine = EmbeddedEngine(loaded, slots=2)
    engine.submit([help.request(0, i, max_tokens=n, stop_token_ids=()) for i, n in enumerate((3, 3, 5))])
    engine.poll()
    with torch.no_grad():
        loaded.model.lm_head.weight.mul_(1.5)
    engine.load(to_model(1, loaded.model), in_flight="keep")
    event = help.drain(engine)[0, 2]
    expected = help.forced_logprobs(loaded, help.prompt(0), event.token_ids)[0, event.token_ids[0]]
    assert event.logprobs[0] == pytest.approx(float(expected), abs=1e-5)


def test_publish_refuses_what_does_not_fit(fresh, help):
    engine = EmbeddedEngine(fresh("llama"), shares_weights=False)
    tensors = dict(fresh("llama").model.named_parameters())
    name = "model.layers.0.mlp.up_proj.weight"
    with pytest.raises(EngineError, match=r"shape \(2, 2\)"):
        engine.load(to_tensors(1, [(name, torch.zeros(2, 2))]))
    with pytest.raises(EngineError, match="no tensor of that name"):
        engine.load(to_tensors(1, [("model.extra", torch.zeros(1))]))
    del tensors[name]
    with pytest.raises(EngineError, match=r"not published \(model.layers.0.mlp.up_proj.weight"):
        engine.load(to_tensors(1, tensors.items()))


@pytest.mark.parametrize("kind", KINDS)
def test_bad_requests_are_refused(kind, model, help, monkeypatch):
    engine = make(kind, model("llama"), monkeypatch)
    engine.submit([help.request(0)])
    with pytest.raises(EngineError, match="twice"):
        engine.submit([help.request(0)])
    with pytest.raises(EngineError, match="empty prompt"):
        engine.submit([help.request(1, prompt_ids=np.empty(0, np.int64))])
    with pytest.raises(EngineError, match="token 40"):
        engine.submit([help.request(1, prompt_ids=[3, 40])])
    with pytest.raises(EngineError, match="512 positions"):
        engine.submit([help.request(1, prompt_ids=[3, 4], max_tokens=511)])


@pytest.mark.parametrize("kind", KINDS)
def test_non_finite_logits_fail_the_response(kind, fresh, help, monkeypatch):
    loaded = fresh("llama")
    engine = make(kind, loaded, monkeypatch)
    with torch.no_grad():
        loaded.model.lm_head.weight[5] = torch.nan
    engine.load(to_model(1, loaded.model))
    engine.submit([help.request(0)])
    event = help.drain(engine)[0, 0]
    assert event.finish is FinishReason.FAILED
    assert "not finite" in event.reason
    assert len(event.token_ids) == 0


def test_sliding_windows_are_decoded_by_the_generic_path(model, help):
    loaded = model("mistral", sliding_window=6)
    engine = EmbeddedEngine(loaded)
    assert engine.decoder.name == "generic"
    engine.submit([help.request(g, prompt_ids=help.prompt(g, 11), max_tokens=40) for g in range(3)])
    for (group, _), event in help.drain(engine).items():
        table = help.forced_logprobs(loaded, help.prompt(group, 11), event.token_ids)
        expected = table.gather(-1, torch.from_numpy(event.token_ids)[:, None])[:, 0]
        np.testing.assert_allclose(event.logprobs, expected.numpy(), atol=2e-5)


def test_a_model_that_neither_decoder_serves_is_refused_by_name(model, help):
    loaded = model("gemma2", query_pre_attn_scalar=8, attn_logit_softcapping=1.0)
    with pytest.raises(EngineError, match=r"softcap.*rollout\.engine: generate"):
        EmbeddedEngine(loaded)
    engine = GenerateEngine(loaded)
    engine.submit([help.request(0, max_tokens=8)])
    event = help.drain(engine)[0, 0]
    table = help.forced_logprobs(loaded, help.prompt(0), event.token_ids)
    expected = table.gather(-1, torch.from_numpy(event.token_ids)[:, None])[:, 0]
    np.testing.assert_allclose(event.logprobs, expected.numpy(), atol=2e-5)


def test_a_wrong_decoder_is_noticed(model, monkeypatch, caplog):
    monkeypatch.setattr(fused, "_pairs", lambda heads, d, device: torch.arange(heads * d))  # rotates the wrong pairs
    assert EmbeddedEngine(model("llama")).decoder.name == "generic"
    assert "differ from the model's own" in caplog.text
    assert decoders.difference(model("llama"), decoders.FusedDecoder(model("llama"))) is not None


def test_generate_ignores_the_models_generation_config(fresh, help):
    loaded = fresh("llama")
    plain = GenerateEngine(loaded)
    plain.submit([help.request(g, max_tokens=10) for g in range(4)])
    expected = {key: event.token_ids.tolist() for key, event in help.drain(plain).items()}
    loaded.model.generation_config.update(repetition_penalty=5.0, temperature=0.1, top_k=2, max_length=3, min_length=40)
    plain.submit([help.request(g, max_tokens=10) for g in range(4)])
    assert {key: event.token_ids.tolist() for key, event in help.drain(plain).items()} == expected
    assert loaded.model.generation_config.repetition_penalty == 5.0


def test_behind_a_cut_the_ratio_to_the_whole_distribution_is_the_mass_that_was_kept(model, help):
    loaded = model("llama")
    engine = EmbeddedEngine(loaded, slots=4)
    engine.submit([help.request(0, i, max_tokens=12, stop_token_ids=(), top_p=0.6) for i in range(4)])
    for event in help.drain(engine).values():
        whole = help.forced_logprobs(loaded, help.prompt(0), event.token_ids)
        own = whole.gather(1, torch.from_numpy(event.token_ids)[:, None])[:, 0]
        kept = torch.softmax(truncate(whole, 0, 0.6), -1) > 0
        mass = (whole.exp() * kept).sum(-1)
        assert 0.6 <= float(mass.min()) < float(mass.max()) < 1
        np.testing.assert_allclose((own - torch.from_numpy(event.logprobs)).exp(), mass, atol=1e-5)
