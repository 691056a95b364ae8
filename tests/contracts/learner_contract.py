"""What every learner promises (``dapo.types.protocols.Learner``), as one list of checks over a factory.

A test file of a learner makes a ``Subject`` and runs ``CHECKS``:

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    def test_contract(check, subject, tmp_path):
        check(subject, tmp_path)

Rows are those that production makes (tests/helpers/learner_rows.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from learner_rows import make_groups, make_rows, masked, rows_of, with_sampler
from learner_subject import Subject, learn, logprobs, loss_tokens, publish, same, save, traced

from dapo.errors import CheckpointError, LearnerError
from dapo.metrics.glossary import lookup
from dapo.metrics.stats import Max, Mean, Min, Sum, merge, values
from dapo.types.batch import LearnStep, TokenRow

KINDS = {"mean": Mean, "sum": Sum, "max": Max, "min": Min}


# ---------------------------------------------------------------- learn


def every_key_has_a_line_and_is_merged_as_it_says(s: Subject, folder: Path) -> None:
    for against in ("sampler", "learner"):
        parts = [make_rows(0), make_rows(1)]
        stats = learn(s.make(), parts, 0.0, against=against).stats
        assert stats
        for key, found in stats.items():
            line = lookup(key)
            assert line is not None, f"{key} has no line in the glossary"
            assert type(found) is KINDS[line.reduction], key
        halves = [learn(s.make(), [rows], 0.0, against=against).stats for rows in parts]
        # the learner's own old log-probabilities come from passes of other shapes, which round otherwise
        near = {"rel": s.close_to, "abs": s.close_to} if against == "learner" else {"rel": 1e-12}
        for key, found in values(merge(halves)).items():
            if against == "learner" or "gap" not in key:  # against the sampler the first minibatch alone has a gap
                assert values(stats)[key] == pytest.approx(found, **near, nan_ok=True), key


def a_minibatch_is_an_optimizer_step(s: Subject, folder: Path) -> None:
    parts = [make_rows(0), make_rows(1, groups=1), make_rows(2, groups=2)]
    stats = learn(s.make(), parts).stats
    assert stats["train/optimizer_steps"] == Sum(3)
    assert (stats["train/empty_steps"], stats["train/skipped_steps"]) == (Sum(0), Sum(0))
    assert stats["train/loss_tokens"] == Mean(sum(map(loss_tokens, parts)), 3)
    for key in ("train/loss", "train/grad_norm"):
        assert stats[key].count == 3
        assert math.isfinite(stats[key].sum)
    assert 0 < stats["train/grad_norm"].value < stats["train/grad_norm_max"].value
    assert stats["train/entropy"].count == stats["train/ratio_mean"].count == sum(map(loss_tokens, parts))
    assert stats["train/micro_batches"].value >= 3
    assert learn(s.make(), []).stats == {}


def minibatches_are_trained_in_order_with_their_own_rates(s: Subject, folder: Path) -> None:
    one, two = make_rows(0), make_rows(1)
    together, apart, turned = s.make(), s.make(), s.make()
    learn(together, [one, two], (1e-2, 3e-3))
    learn(apart, [one], 1e-2)
    learn(apart, [two], 3e-3)
    learn(turned, [two, one], (1e-2, 3e-3))
    rows = make_rows(2)
    found = logprobs(together, rows)
    assert same(found, logprobs(apart, rows))
    assert not same(found, logprobs(turned, rows))
    assert not same(found, logprobs(s.make(), rows))


def a_learning_rate_of_zero_moves_nothing(s: Subject, folder: Path) -> None:
    learner, rows = s.make(), make_rows()
    before = logprobs(learner, rows)
    learn(learner, [rows, rows], 0.0)
    assert same(before, logprobs(learner, rows))


def what_was_better_becomes_likelier(s: Subject, folder: Path) -> None:
    learner = s.make()
    groups = make_groups(groups=1, size=2, length=lambda random: 8)
    groups[0].scores_G[:] = [replace(groups[0].scores_G[0], reward=reward) for reward in (1.0, -1.0)]
    rows = rows_of(groups)
    rows = with_sampler(rows, logprobs(learner, rows))
    learn(learner, [rows])
    good, bad = (
        float((now - row.sampler_logprobs).sum()) for now, row in zip(logprobs(learner, rows), rows, strict=True)
    )
    assert good > 0 > bad


def a_minibatch_without_loss_moves_nothing(s: Subject, folder: Path) -> None:
    learner, rows = s.make(), make_rows()
    learn(learner, [rows])  # momentum that would move the weights
    before = logprobs(learner, rows)
    for empty in ([], [masked(row) for row in traced(rows)]):
        found = learn(learner, [empty])
        assert (found.stats["train/optimizer_steps"], found.stats["train/empty_steps"]) == (Sum(1), Sum(1))
        assert found.stats["train/loss_tokens"] == Mean(0, 1)
        assert found.traces == []
    assert same(before, logprobs(learner, rows))
    between = learn(learner, [make_rows(1), [], make_rows(2)])
    without = s.make()
    learn(without, [rows])
    expected = learn(without, [make_rows(1), make_rows(2)])
    assert between.stats["train/optimizer_steps"] == Sum(3)
    assert between.stats["train/loss"] == expected.stats["train/loss"]  # a mean over the steps that had one
    assert same(logprobs(learner, rows), logprobs(without, rows))


def rows_without_loss_change_nothing(s: Subject, folder: Path) -> None:
    rows = make_rows()
    silent = [masked(replace(row, group=row.group + 50)) for row in traced(make_rows(7))]
    found = []
    for batch in (rows, [silent[0], *rows, *silent[1:]]):
        learner = s.make()
        learned = learn(learner, [batch])
        assert learned.traces == []
        found.append((learned.stats, logprobs(learner, rows)))
    assert found[0][0] == found[1][0]
    assert same(found[0][1], found[1][1])


def tokens_without_loss_are_left_out(s: Subject, folder: Path) -> None:
    rows = [replace(row, loss_mask=np.arange(len(row.token_ids)) % 2 == 0) for row in make_rows()]
    strange = with_sampler(rows, [np.where(row.loss_mask, row.sampler_logprobs, np.float32(-30.0)) for row in rows])
    stats = [learn(s.make(), [batch]).stats for batch in (rows, strange)]
    assert stats[0] == stats[1]
    assert stats[0]["train/loss_tokens"] == Mean(loss_tokens(rows), 1)


def rows_are_only_read(s: Subject, folder: Path) -> None:
    rows = make_rows()
    copies = [(row.token_ids.copy(), row.loss_mask.copy(), row.sampler_logprobs.copy()) for row in rows]
    learner = s.make()
    learn(learner, [rows], against="learner")
    logprobs(learner, rows)
    for row, before in zip(rows, copies, strict=True):
        for now, then in zip((row.token_ids, row.loss_mask, row.sampler_logprobs), before, strict=True):
            np.testing.assert_array_equal(now, then)


# ---------------------------------------------------------------- traces, ratio, versions


def traced_rows_are_on_record(s: Subject, folder: Path) -> None:
    """Those with loss, in the order of the optimiser steps; the record is the receiver's."""
    parts = [make_rows(0), [replace(row, group=row.group + 10) for row in make_rows(1)]]
    parts = [traced(rows, lambda row: (row.group + row.sample) % 2 == 0) for rows in parts]
    parts[0][0] = masked(parts[0][0])
    learner, plain = s.make(), s.make()
    learned = learn(learner, parts)
    expected = [
        {(r.group, r.sample): len(r.token_ids) for r in rows if r.traced and r.loss_mask.any()} for rows in parts
    ]
    first = len(expected[0])
    assert [(t.group, t.sample) for t in learned.traces] != []
    for traces, lengths in ((learned.traces[:first], expected[0]), (learned.traces[first:], expected[1])):
        assert {(t.group, t.sample): len(t.logprobs) for t in traces} == lengths
        assert len(traces) == len(lengths)
    kept = [(t.logprobs.copy(), t.ratio.copy()) for t in learned.traces]
    for t in learned.traces:
        arrays = (t.logprobs, t.old_logprobs, t.ratio, t.entropy)
        assert {a.dtype for a in arrays} == {np.dtype(np.float32)}
        assert len({len(a) for a in arrays}) == 1
        assert t.clip is None or (t.clip.dtype == np.int8 and set(t.clip.tolist()) <= {0, 1, 2, 3})
        assert (t.entropy > 0).all()
        np.testing.assert_allclose(t.ratio, np.exp(t.logprobs - t.old_logprobs), rtol=1e-4)
    assert learn(plain, [traced(rows, lambda row: False) for rows in parts]).stats == learned.stats
    assert same(logprobs(learner, parts[0]), logprobs(plain, parts[0]))
    learn(learner, parts)
    for t, (then_logprobs, then_ratio) in zip(learned.traces, kept, strict=True):
        np.testing.assert_array_equal(t.logprobs, then_logprobs)
        np.testing.assert_array_equal(t.ratio, then_ratio)


def the_ratio_runs_against_whom_it_says(s: Subject, folder: Path) -> None:
    """Against the sampler's numbers, or the learner's from before the first optimiser step, also in the second."""
    parts = [traced(make_rows(0)), [replace(row, group=row.group + 10) for row in traced(make_rows(1))]]
    rows = {(row.group, row.sample): row for part in parts for row in part}
    before = dict(zip(rows, logprobs(s.make(), list(rows.values())), strict=True))
    sampler = learn(s.make(), parts, against="sampler").traces
    own = learn(s.make(), parts, against="learner").traces
    assert len(sampler) == len(own) == len(rows)
    for t in sampler:
        np.testing.assert_array_equal(t.old_logprobs, rows[t.group, t.sample].sampler_logprobs)
    for t in own:
        np.testing.assert_allclose(t.old_logprobs, before[t.group, t.sample], atol=s.close_to)
    untouched, moved = (
        [abs(t.ratio - 1.0).max() for t in own if (t.group >= 10) is second] for second in (False, True)
    )
    assert max(untouched) <= s.close_to
    assert max(moved) > 2 * max(untouched)  # the first step moved the weights
    only = learn(s.make(), parts[:1], against="learner").stats
    assert (only["train/ratio_max"], only["train/ratio_min"]) == (Max(1.0), Min(1.0))


def tokens_of_the_version_that_is_trained_are_current(s: Subject, folder: Path) -> None:
    """The gap between sampler and learner, of current tokens and of older ones."""
    groups = make_groups(groups=2, size=2, length=lambda random: 6, versions=(1, 2, 3))
    rows, learner = rows_of(groups), s.make()
    current = np.concatenate([row.versions == 3 for row in rows])
    assert 0 < current.sum() < len(current)
    shifts = [np.where(row.versions == 3, 0.25, 0.5).astype(np.float32) for row in rows]
    rows = with_sampler(rows, [own - by for own, by in zip(logprobs(learner, rows), shifts, strict=True)])
    stats = learn(learner, [rows], 0.0, version=3).stats
    for suffix, gap, count in (("_current", 0.25, current.sum()), ("_older", 0.5, (~current).sum())):
        assert stats[f"train/gap_mean{suffix}"].count == count
        assert stats[f"train/gap_mean{suffix}"].value == pytest.approx(gap, abs=s.close_to)
        assert stats[f"train/gap_max{suffix}"].value == pytest.approx(gap, abs=4 * s.close_to)
    none = learn(learner, [rows], 0.0, version=7, against="learner").stats
    assert "train/gap_max_current" not in none
    assert none["train/gap_mean"].count == len(current)


def once_weights_moved_the_gap_waits_for_a_publish(s: Subject, folder: Path) -> None:
    learner, rows = s.make(), make_rows()
    assert "train/gap_mean" in learn(learner, [rows]).stats
    assert not [key for key in learn(learner, [rows]).stats if "gap" in key]
    assert "train/gap_mean" in learn(learner, [rows], against="learner").stats
    publish(learner, 1)
    assert "train/gap_mean" in learn(learner, [rows], version=1).stats


# ---------------------------------------------------------------- handles, log-probabilities


def a_handle_answers_as_often_as_it_is_asked(s: Subject, folder: Path) -> None:
    learner, rows = s.make(), make_rows()
    under_way = learner.learn(LearnStep([rows], [1e-2], 0))
    learned = under_way.result()
    assert under_way.done()
    assert under_way.result() is learned
    assert under_way.result(timeout=0) is learned
    asked = learner.logprobs(rows)
    found = asked.result()
    kept = [own.copy() for own in found]
    assert asked.done()
    learn(learner, [rows])
    assert same(asked.result(), kept)  # of the weights when it was asked
    assert not same(logprobs(learner, rows), kept)


def logprobs_come_in_the_order_of_the_rows(s: Subject, folder: Path) -> None:
    learner, rows = s.make(), make_rows()
    shuffled = [rows[i] for i in (5, 0, 8, 3, 1, 7, 2, 6, 4)]
    found = logprobs(learner, shuffled)
    assert {own.dtype for own in found} == {np.dtype(np.float32)}
    for own, row in zip(found, shuffled, strict=True):
        assert own.shape == row.token_ids.shape
        assert (own < 0).all()
        np.testing.assert_allclose(own, logprobs(learner, [row])[0], atol=s.close_to)
    bare = [TokenRow(row.group, row.prompt_ids, row.token_ids) for row in shuffled]
    assert same(found, logprobs(learner, bare))
    assert same(found, logprobs(learner, shuffled))  # asking moves nothing
    assert logprobs(learner, []) == []


# ---------------------------------------------------------------- publish, checksums


def published_names_stay_and_have_checksums(s: Subject, folder: Path) -> None:
    learner = s.make()
    names = publish(learner, 0)
    assert names
    assert len(set(names)) == len(names)
    before = learner.checksums(dict.fromkeys(names, s.dtype))
    assert list(before) == names
    assert all(type(value) is int for value in before.values())
    assert (
        before == learner.checksums(dict.fromkeys(names, s.dtype)) == s.make().checksums(dict.fromkeys(names, s.dtype))
    )
    learn(learner, [make_rows()])
    assert publish(learner, 1) == names
    after = learner.checksums(dict.fromkeys(names, s.dtype))
    assert [name for name in names if after[name] != before[name]]


def checksums_are_of_the_named_types_and_of_known_names(s: Subject, folder: Path) -> None:
    learner = s.make()
    names = publish(learner)
    assert learner.checksums({}) == {}
    assert learner.checksums({"no.such.tensor": "float32"}) == {}
    assert list(learner.checksums({names[0]: s.dtype, "no.such.tensor": s.dtype})) == names[:1]
    if s.dtype == "float32":  # rounded as the engine holds them
        wide, narrow = (learner.checksums(dict.fromkeys(names, dtype)) for dtype in ("float32", "bfloat16"))
        assert any(wide[name] != narrow[name] for name in names)


# ---------------------------------------------------------------- save, load, close


def save_and_load_restore_the_bit(s: Subject, folder: Path) -> None:
    """Weights, moments and counts: the next step is the one that would have been."""
    batches = [make_rows(seed) for seed in range(4)]
    whole, resumed = s.make(), s.make()
    for batch in batches[:2]:
        learn(whole, [batch])
    save(whole, folder / "some" / "learner")
    resumed.load(folder / "some" / "learner")
    assert same(logprobs(whole, batches[0]), logprobs(resumed, batches[0]))
    names = [publish(learner, 2) for learner in (whole, resumed)]
    assert names[0] == names[1]
    dtypes = dict.fromkeys(names[0], s.dtype)
    assert whole.checksums(dtypes) == resumed.checksums(dtypes)
    for batch in batches[2:]:
        assert learn(whole, [batch]).stats == learn(resumed, [batch]).stats
    assert whole.checksums(dtypes) == resumed.checksums(dtypes)
    assert same(logprobs(whole, batches[0]), logprobs(resumed, batches[0]))


def what_is_saved_is_the_state_of_then(s: Subject, folder: Path) -> None:
    """Also where files are written while the next step is trained."""
    learner, resumed = s.make(), s.make()
    learn(learner, [make_rows(0)])
    dtypes = dict.fromkeys(publish(learner, 1), s.dtype)
    then = learner.checksums(dtypes)
    saving = learner.save(folder / "learner")
    following = learn(learner, [make_rows(1)]).stats
    assert learner.checksums(dtypes) != then
    assert saving.result(timeout=600)
    assert saving.done()
    resumed.load(folder / "learner")
    publish(resumed, 1)
    assert resumed.checksums(dtypes) == then
    assert learn(resumed, [make_rows(1)]).stats == following


def an_incomplete_checkpoint_is_refused(s: Subject, folder: Path) -> None:
    """Whichever of its files is missing."""
    learner = s.make()
    learn(learner, [make_rows()])
    for number in range(len(save(learner, folder / "whole"))):
        at = folder / str(number)
        (at / save(learner, at)[number].name).unlink()
        with pytest.raises(CheckpointError, match="not a complete learner checkpoint"):
            learner.load(at)


def saving_changes_nothing(s: Subject, folder: Path) -> None:
    learner, plain, rows = s.make(), s.make(), make_rows()
    learn(learner, [rows])
    learn(plain, [rows])
    save(learner, folder / "learner")
    assert learn(learner, [rows]).stats == learn(plain, [rows]).stats


def what_it_cannot_load_is_refused_without_change(s: Subject, folder: Path) -> None:
    """Another model's checkpoint, or none."""
    save(s.other(), folder / "other")
    learner, plain, rows = s.make(), s.make(), make_rows()
    learn(learner, [rows])
    learn(plain, [rows])
    with pytest.raises(CheckpointError, match=r"another model: .* there, .* here"):
        learner.load(folder / "other")
    with pytest.raises(CheckpointError, match="not a complete learner checkpoint"):
        learner.load(folder / "nothing")
    assert same(logprobs(learner, rows), logprobs(plain, rows))
    assert learn(learner, [rows]).stats == learn(plain, [rows]).stats


def gradients_that_are_not_finite_are_skipped_and_then_end_it(s: Subject, folder: Path) -> None:
    learner, resumed, rows = s.diverging(), s.diverging(), make_rows()
    before = logprobs(learner, rows)
    stats = learn(learner, [rows]).stats
    assert (stats["train/optimizer_steps"], stats["train/skipped_steps"]) == (Sum(1), Sum(1))
    assert stats["train/grad_norm"].count == 0  # a mean over the norms that there were
    assert "train/grad_norm_max" not in stats
    assert same(before, logprobs(learner, rows))
    save(learner, folder / "learner")
    resumed.load(folder / "learner")
    for one in (learner, resumed):
        with pytest.raises(LearnerError, match="2 optimiser steps in a row"):
            learn(one, [rows])
        assert same(before, logprobs(one, rows))


def close_may_come_twice(s: Subject, folder: Path) -> None:
    learner = s.make()
    learn(learner, [make_rows()])
    learner.close()
    learner.close()


CHECKS: list[Callable[[Subject, Path], None]] = [
    every_key_has_a_line_and_is_merged_as_it_says,
    a_minibatch_is_an_optimizer_step,
    minibatches_are_trained_in_order_with_their_own_rates,
    a_learning_rate_of_zero_moves_nothing,
    what_was_better_becomes_likelier,
    a_minibatch_without_loss_moves_nothing,
    rows_without_loss_change_nothing,
    tokens_without_loss_are_left_out,
    rows_are_only_read,
    traced_rows_are_on_record,
    the_ratio_runs_against_whom_it_says,
    tokens_of_the_version_that_is_trained_are_current,
    once_weights_moved_the_gap_waits_for_a_publish,
    a_handle_answers_as_often_as_it_is_asked,
    logprobs_come_in_the_order_of_the_rows,
    published_names_stay_and_have_checksums,
    checksums_are_of_the_named_types_and_of_known_names,
    save_and_load_restore_the_bit,
    what_is_saved_is_the_state_of_then,
    an_incomplete_checkpoint_is_refused,
    saving_changes_nothing,
    what_it_cannot_load_is_refused_without_change,
    gradients_that_are_not_finite_are_skipped_and_then_end_it,
    close_may_come_twice,
]
