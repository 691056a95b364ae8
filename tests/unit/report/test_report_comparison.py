"""Recipes against one another: names by what differs, and intervals that were worked out by hand."""

import shutil

import pytest
from evaluated import evaluation

from dapo.errors import RecipeError
from dapo.observe.evaluations import write_evaluation
from dapo.observe.run_folder import RunFolder
from dapo.report.compare import families
from dapo.report.comparison import compare_runs
from dapo.report.comparison_words import compare_families
from dapo.report.family_names import name_families
from dapo.report.reader import RunContents, read_run


def run_of(tmp_path, family, seed, values, key="validation/accuracy", half=None):
    """A run whose rows hold {step: value}."""
    path = tmp_path / f"{family}-{seed}"
    path.mkdir()
    ends = lambda v: {} if half is None else {f"{key}_low": v - half, f"{key}_high": v + half}  # noqa: E731
    rows = [{"step": step, key: value, **ends(value)} for step, value in values.items()]
    return RunContents(RunFolder(path), path.name, rows=rows, family=family, seed=seed)


def test_equal_seeds_are_paired(tmp_path):
    before = {1: 0.50, 2: 0.60, 3: 0.70, 4: 0.55, 5: 0.65}
    runs = [run_of(tmp_path, "a", s, {0: 0.1, 9: v}) for s, v in before.items()]
    gains = {3: 0.05, 1: 0.03, 2: 0.04, 5: 0.07, 4: 0.06}
    runs += [run_of(tmp_path, "b", s, {0: 0.1, 9: before[s] + gain}) for s, gain in gains.items()]
    first, second = compare_families(runs)
    assert first["said"] == "held-out accuracy 60.0% at step 9, mean of 5 seeds (50.0% to 70.0%)."
    # differences 3 to 7 points: deviation 1.581, half 2.776 x 1.581 / sqrt(5) = 1.96
    assert second["said"] == (
        "held-out accuracy 65.0% at step 9, mean of 5 seeds (53.0% to 75.0%); +5.0 points against a "
        "(95 % interval +3.0 to +7.0, paired by 5 seeds): better, which is shown."
    )
    assert (first["tone"], second["tone"]) == ("", "good")
    assert second["runs"] == ["b-3", "b-1", "b-2", "b-5", "b-4"]
    fewer = compare_families([run for run in runs if run.seed != 4])[1]  # an interval as far from 0, of four seeds
    assert fewer["said"].endswith("paired by 4 seeds): too few seeds (5 needed).")
    assert fewer["tone"] == ""


def test_other_seeds_are_compared_by_their_means(tmp_path):
    runs = [run_of(tmp_path, "a", s, {5: v}) for s, v in ((1, 0.4), (2, 0.6))]
    runs += [run_of(tmp_path, "b", s, {5: v}) for s, v in ((3, 0.3), (4, 0.5))]
    # deviations 14.14 points each, two degrees of freedom: 4.3027 x sqrt(0.01 + 0.01) = 60.85 points
    said = compare_families(runs)[1]["said"]
    assert "−10.0 points against a (95 % interval −70.8 to +50.8, over unequal seeds): too few seeds" in said


def test_single_runs_have_the_interval_of_their_evaluations(tmp_path):
    one = run_of(tmp_path, "a", 1, {5: 0.5}, half=0.03)
    two = run_of(tmp_path, "b", 1, {5: 0.3}, half=0.04)
    view = compare_families([one, two])[1]
    assert "−20.0 points against a-1 (95 % interval −25.0 to −15.0, of the problems asked)" in view["said"]
    assert view["tone"] == "bad"
    other = run_of(tmp_path, "c", 2, {5: 0.3}, half=0.04)
    assert "of the problems asked; seeds differ, too)" in compare_families([one, other])[1]["said"]


def test_the_last_step_that_all_measured_counts(tmp_path):
    short, long = run_of(tmp_path, "a", 1, {0: 0.1, 5: 0.5}), run_of(tmp_path, "b", 1, {0: 0.1, 5: 0.4, 9: 0.9})
    assert [view["said"] for view in compare_families([short, long])] == [
        "held-out accuracy 50.0% at step 5.",
        "held-out accuracy 40.0% at step 5.",
    ]


def test_a_smaller_loss_is_better(tmp_path):
    runs = [run_of(tmp_path, "a", s, {5: 1.0 + s / 100}, key="validation/loss") for s in range(5)]
    runs += [run_of(tmp_path, "b", s, {5: 0.5 + s / 100}, key="validation/loss") for s in range(5)]
    view = compare_families(runs)[1]
    assert "held-out loss 0.520 at step 5" in view["said"]
    assert "−0.5 nats" in view["said"]
    assert view["said"].endswith("better, which is shown.")
    assert view["tone"] == "good"


def test_runs_without_a_common_number_have_names_alone(tmp_path):
    one, two = run_of(tmp_path, "a", 1, {5: 0.5}), run_of(tmp_path, "b", 1, {5: 0.5}, key="train/loss")
    assert [view["said"] for view in compare_families([one, two])] == ["", ""]
    assert compare_runs([one, two]).left_out == {
        "a-1": "no other setting has its held-out accuracy",
        "b-1": "it has no accuracy or loss after step 0",
    }
    losses = [run_of(tmp_path, family, 1, {5: 0.5}, key="validation/loss") for family in "cd"]
    assert set(compare_runs(losses, at="tokens").left_out.values()) == {"it counts no generated tokens"}
    assert compare_families([one]) == []


def test_of_two_runs_with_one_seed_the_longer_one_counts(tmp_path):
    runs = [run_of(tmp_path, "a", 1, {5: 0.5, 9: 0.5}), run_of(tmp_path, "b", 1, {5: 0.6})]
    again = run_of(tmp_path, "c", 1, {5: 0.1, 9: 0.7})
    again.family = "b"
    first, second = compare_families([*runs, again])
    assert (first["runs"], second["runs"]) == (["a-1"], ["b-1", "c-1"])
    assert "held-out accuracy 70.0% at step 9" in second["said"]
    assert second["said"].endswith("Left out: b-1: it has the seed of c-1, which got further or as far.")
    # nothing but repetitions, of another machine perhaps: each is a setting
    again.family = runs[0].family
    assert [view["runs"] for view in compare_families([runs[0], again])] == [["a-1"], ["c-1"]]


def test_diverged_numbers_are_compared_without_an_overflow(tmp_path):
    runs = [run_of(tmp_path, f, s, {5: 1e100}, key="validation/loss") for f in "ab" for s in (1, 2)]
    assert all(view["said"] and "nan" not in view["said"] for view in compare_families(runs))


def test_a_family_is_named_by_the_settings_that_differ(tmp_path, make_run):
    def named(**settings):
        folder = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
        return read_run(make_run(folder, seed=len(str(settings)), settings=settings))

    base, rate = named(), named(learner={"learning_rate": 1e-5})
    assert name_families([[base], [rate]]) == ["learner.learning_rate=2e-06", "learner.learning_rate=1e-05"]
    off = named(algorithm={"dynamic_sampling": {"mode": "off"}})
    assert name_families([[base], [off]]) == ["dynamic_sampling.mode=filter", "dynamic_sampling.mode=off"]
    two = named(learner={"learning_rate": 1e-5, "minibatch_prompts": 4}, rollout={"max_response_tokens": 64})
    name, _ = name_families([[base], [two]])
    assert name.endswith("more setting")
    assert name.count("=") == 2
    assert name_families([[base], [named()]]) == ["", ""]
    saved = named(checkpoint={"every": 3}, logging={"trackers": ["tensorboard"]})
    assert saved.family == base.family != rate.family  # neither changes a number
    assert name_families([[base]]) == [""]


def test_seeds_of_generated_problems_are_seeds_and_other_settings_of_a_list_are_named_by_their_place(
    tmp_path, make_run
):
    def of(seed, problems, **more):
        data = {"train": [{"task": "signed_sum", "seed": problems, **more}]}
        return read_run(make_run(tmp_path / f"{seed}-{problems}-{len(more)}", seed=seed, settings={"data": data}))

    small = {"size": 500, "options": {"max_terms": 3, "min_terms": 3}}
    runs = [of(1, 101), of(2, 102), of(1, 101, **small), of(2, 102, **small)]
    assert families(runs) == {runs[0].family: runs[:2], runs[2].family: runs[2:]}
    one, other = name_families([runs[:2], runs[2:]])
    assert one == "train.0.size=null, options.max_terms=none and 1 more setting"
    assert other == "train.0.size=500, options.max_terms=3 and 1 more setting"
    long = of(3, 101, name="x" * 80)
    assert f"train.0.name={'x' * 39}…" in name_families([runs[:1], [long]])[1]


def test_a_run_of_another_version_has_no_settings_to_be_named_by(tmp_path, make_run):
    one, other = read_run(make_run(tmp_path / "one")), read_run(make_run(tmp_path / "two", seed=2))
    other.recipe = None
    assert name_families([[one], [other]]) == ["", ""]


def test_single_runs_that_asked_the_same_problems_are_compared_in_pairs(tmp_path):
    """8 of 100 problems are won: d' = 8 / 102, s' = 0.2867, so 0 lies 2.3 points below the interval."""
    runs = [run_of(tmp_path, family, 1, {5: v}, half=0.1) for family, v in (("a", 0.40), ("b", 0.48))]
    for run, right in zip(runs, (40, 48), strict=True):
        run.folder.evaluations.mkdir()
        write_evaluation(run.folder.evaluation_file(5), 5, evaluation([[1.0]] * right + [[0.0]] * (100 - right)))
    said = compare_families(runs)[1]["said"]
    in_pairs = "+8.0 points against a-1 (95 % interval +2.3 to +13.7, in pairs of the problems asked): better, by one"
    assert in_pairs in said
    runs[1].folder.evaluation_file(5).unlink()
    assert "(95 % interval −6.1 to +22.1, of the problems asked): within chance." in compare_families(runs)[1]["said"]


def test_a_run_without_an_evaluation_is_named_and_the_others_are_compared(tmp_path):
    runs = [run_of(tmp_path, family, s, {0: 0.1, 9: 0.5 + s / 100}) for family in "ab" for s in range(3)]
    killed, silent = run_of(tmp_path, "a", 7, {0: 0.1, 2: 0.3}), run_of(tmp_path, "b", 7, {3: 0.4}, key="train/loss")
    first, second = compare_families([*runs, killed, silent])
    assert "held-out accuracy 51.0% at step 9, mean of 3 seeds" in first["said"]
    assert first["said"].endswith("Left out: a-7: its last held-out accuracy is of step 2.")
    assert "paired by 3 seeds" in second["said"]
    assert second["said"].endswith("Left out: b-7: it has no held-out accuracy.")
    # a setting of which no run was evaluated silences nobody either
    alone = run_of(tmp_path, "c", 1, {9: 0.4}, key="reward/accuracy")
    said = [view["said"] for view in compare_families([alone, *runs])]
    assert said[0] == "Left out: c-1: it has no held-out accuracy."
    assert "at step 9, mean of 3 seeds" in said[2]
    assert "points against a (95 %" in said[2]  # the first setting with a value
    assert (
        "+0.0 points against a (no interval: one side is a single run): too few seeds"
        in compare_families([*runs[:3], runs[4]])[1]["said"]
    )


def test_the_place_keeps_most_steps_of_most_runs(tmp_path):
    """Five runs to step 9 are worth more than six to step 2; six to step 8 more than five to step 9."""
    whole = [run_of(tmp_path, "a", s, {2: 0.1, 8: 0.5, 9: 0.6}) for s in range(5)]
    assert compare_runs([*whole, run_of(tmp_path, "b", 0, {2: 0.1, 8: 0.2, 9: 0.3})]).place == 9
    early = compare_runs([*whole, run_of(tmp_path, "a", 6, {2: 0.1})])
    assert (early.place, list(early.left_out)) == (9, ["a-6"])
    late = compare_runs([*whole, run_of(tmp_path, "a", 7, {2: 0.1, 8: 0.2})])
    assert (late.place, late.left_out) == (8, {})
    assert late.notes == ["longer: a-0 to step 9, a-1 to step 9, a-2 to step 9, a-3 to step 9, a-4 to step 9"]
    # every setting keeps a run, however short
    short = compare_runs([*whole, run_of(tmp_path, "c", 1, {2: 0.1})])
    assert (short.place, short.left_out) == (2, {})


def test_at_equal_tokens_a_value_between_two_evaluations_lies_on_their_line(tmp_path):
    def with_tokens(family, seed, per_step, values):
        run = run_of(tmp_path, family, seed, values)
        for row in run.rows:
            row |= {"counters/generated_tokens": per_step * row["step"]} if row["step"] else {}
        return run

    slow = with_tokens("a", 1, 100, {0: 0.0, 10: 0.5, 20: 0.7})  # 1,000 and 2,000 tokens
    fast = with_tokens("b", 1, 400, {0: 0.0, 10: 0.4, 20: 0.8})  # 4,000 and 8,000
    found = compare_runs([slow, fast], at="tokens")
    assert found.place == 2000
    assert [family.compared[0].value for family in found.families] == pytest.approx([0.7, 0.2])
    assert found.notes == ["longer: b-1 to 8,000 generated tokens"]
    at = compare_runs([slow, fast], at="tokens", place=1500)
    assert [family.compared[0].value for family in at.families] == pytest.approx([0.6, 0.15])
    beyond = compare_runs([slow, fast], at="tokens", place=5000)
    assert beyond.left_out == {"a-1": "its last held-out accuracy is of step 20"}
    uncounted = compare_runs([run_of(tmp_path, "c", 1, {10: 0.5}), slow, fast], at="tokens")
    assert uncounted.left_out == {"c-1": "it counts no generated tokens"}


def test_families_by_a_setting_are_paired_by_all_else(tmp_path, make_run):
    def of(rate, loss, seed):
        settings = {"learner": {"learning_rate": rate}, "algorithm": {"loss": {"kind": loss}}}
        return read_run(make_run(tmp_path / f"{rate}-{loss}-{seed}", seed=seed, settings=settings))

    runs = [of(rate, loss, seed) for rate in (1e-6, 1e-5) for loss in ("clip", "cispo") for seed in (1, 2)]
    found = compare_runs(runs, by="learner.learning_rate")
    assert [family.name for family in found.families] == [
        "learner.learning_rate=1e-06",
        "learner.learning_rate=1e-05",
    ]
    assert found.families[1].difference.how == "4 pairs of runs alike but for learner.learning_rate"
    assert len(compare_runs(runs).families) == 4
    with pytest.raises(RecipeError, match=r"expected one such as learner\.learning_rate"):
        compare_runs(runs, by="learner.learning_rte")


def test_families_are_named_by_their_runs_and_by_what_their_recipes_gave(tmp_path, make_run):
    def of(name, seed, **settings):
        return read_run(make_run(tmp_path / name, seed=seed, settings=settings))

    plain = [of(f"plain-seed{seed}", seed) for seed in (1, 2)]
    beside = [of(f"beside-seed{seed}", seed, rollout={"max_staleness": 2}) for seed in (1, 2)]
    # max_age and lookahead follow from max_staleness, options of a loss from its kind
    assert [family.name for family in compare_runs([*plain, *beside]).families] == [
        "plain, rollout.max_staleness=0",
        "beside, rollout.max_staleness=2",
    ]
    cispo = [of(f"cispo_{seed}", seed, algorithm={"loss": {"kind": "cispo"}}) for seed in (1, 10)]
    assert [family.name for family in compare_runs([*plain, *cispo]).families] == [
        "plain, loss.kind=clip",
        "cispo, loss.kind=cispo",
    ]


def test_a_difference_on_other_held_out_problems_has_no_verdict(tmp_path, make_run):
    train = [{"task": "signed_sum"}]

    def of(name, seed, size=40, problems=9, **validation):
        data = {"train": train, "validation": [{"task": "signed_sum", "seed": problems, "size": size}]}
        return read_run(
            make_run(tmp_path / f"{name}-{seed}", seed=seed, settings={"data": data, "validation": validation})
        )

    def compared(*others):
        found = compare_runs([of("first", 1), of("first", 2), *others])
        difference = found.families[-1].difference
        assert difference is not None
        shutil.rmtree(tmp_path / "first-1")
        shutil.rmtree(tmp_path / "first-2")
        return difference.verdict, any("evaluated on other problems" in note for note in found.notes)

    assert compared(of("size", 1, size=50), of("size", 2, size=50)) == ("other problems", True)
    assert compared(of("warm", 1, temperature=0.5), of("warm", 2, temperature=0.5)) == ("too few seeds", True)
    learner = {"learning_rate": 1e-5}
    high = [read_run(make_run(tmp_path / f"high-{seed}", seed=seed, settings={"learner": learner})) for seed in (1, 2)]
    plain = [read_run(make_run(tmp_path / f"plain-{seed}", seed=seed)) for seed in (1, 2)]
    found = compare_runs([*plain, *high])
    assert (found.families[-1].difference.verdict, found.notes) == ("too few seeds", [])


def test_an_unreadable_recipe_takes_no_names_from_the_others_and_states_are_said(tmp_path, make_run):
    low = [read_run(make_run(tmp_path / f"low-{seed}", seed=seed)) for seed in (1, 2)]
    high = read_run(make_run(tmp_path / "high-1", settings={"learner": {"learning_rate": 1e-5}}))
    killed = read_run(make_run(tmp_path / "other", steps=5, wanted=12, how="killed", seed=3))
    (make_run(tmp_path / "old") / "recipe.resolved.yaml").write_text("x: [")
    found = compare_runs([*low, killed, read_run(tmp_path / "old"), high])
    assert [family.name for family in found.families] == [
        "learner.learning_rate=2e-06",
        "old",
        "high-1, learner.learning_rate=1e-05",
    ]
    assert found.left_out == {"other": "its last held-out accuracy is of step 5 (killed)"}
    assert compare_runs([*low, high]).families[0].name == "low, learner.learning_rate=2e-06"


def test_the_interval_of_an_accuracy_is_cut_at_its_bounds_and_that_of_a_loss_is_not(tmp_path):
    accuracy = compare_runs([run_of(tmp_path, "a", seed, {1: seed / 10}) for seed in (1, 9)]).families[0].mean
    assert (accuracy.low, accuracy.high) == (0.0, 1.0)
    runs = [run_of(tmp_path, "b", seed, {1: seed / 10}, key="validation/loss") for seed in (1, 9)]
    # error 0.4, t of one degree of freedom 12.706
    assert compare_runs(runs).families[0].mean.low == pytest.approx(0.5 - 12.706 * 0.4, abs=1e-3)
