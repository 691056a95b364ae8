"""Recipes against one another: names by what differs, and intervals that were worked out by hand."""

from evaluated import evaluation

from dapo.observe.evaluations import write_evaluation
from dapo.observe.run_folder import RunFolder
from dapo.report.compare import families
from dapo.report.comparison import compare_families, name_families
from dapo.report.reader import RunContents, read_run


def run_of(tmp_path, family, seed, values, key="validation/accuracy", half=None):
    """A run whose rows hold {step: value}."""
    path = tmp_path / f"{family}-{seed}"
    path.mkdir()
    ends = lambda v: {} if half is None else {f"{key}_low": v - half, f"{key}_high": v + half}  # noqa: E731
    rows = [{"step": step, key: value, **ends(value)} for step, value in values.items()]
    return RunContents(RunFolder(path), path.name, rows=rows, family=family, seed=seed)


def test_equal_seeds_are_paired(tmp_path):
    runs = [run_of(tmp_path, "a", s, {0: 0.1, 9: v}) for s, v in ((1, 0.50), (2, 0.60), (3, 0.70))]
    runs += [run_of(tmp_path, "b", s, {0: 0.1, 9: v}) for s, v in ((3, 0.76), (1, 0.54), (2, 0.65))]
    first, second = compare_families(runs)
    assert first["said"] == "held-out accuracy 60.0% at step 9, mean of 3 seeds (50.0% to 70.0%)."
    # differences 4, 5 and 6 points: deviation 1, half 4.303 / sqrt(3) = 2.48
    assert second["said"] == (
        "held-out accuracy 65.0% at step 9, mean of 3 seeds (54.0% to 76.0%); +5.0 points against a-1 "
        "(95 % interval +2.5 to +7.5, paired by 3 seeds): better."
    )
    assert (first["tone"], second["tone"]) == ("", "good")
    assert second["runs"] == ["b-3", "b-1", "b-2"]


def test_other_seeds_are_compared_by_their_means(tmp_path):
    runs = [run_of(tmp_path, "a", s, {5: v}) for s, v in ((1, 0.4), (2, 0.6))]
    runs += [run_of(tmp_path, "b", s, {5: v}) for s, v in ((3, 0.3), (4, 0.5))]
    # deviations 14.1 points each, two degrees of freedom: 4.303 x sqrt(0.01 + 0.01) = 60.9 points
    said = compare_families(runs)[1]["said"]
    assert "−10.0 points against a-1 (95 % interval −70.9 to +50.9, over unequal seeds): within chance." in said


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
    runs = [run_of(tmp_path, "a", s, {5: 1.0 + s / 100}, key="validation/loss") for s in (1, 2)]
    runs += [run_of(tmp_path, "b", s, {5: 0.5 + s / 100}, key="validation/loss") for s in (1, 2)]
    view = compare_families(runs)[1]
    assert "held-out loss 0.515 at step 5" in view["said"]
    assert "−0.5 nats" in view["said"]
    assert view["tone"] == "good"


def test_runs_without_a_common_number_have_names_alone(tmp_path):
    one, two = run_of(tmp_path, "a", 1, {5: 0.5}), run_of(tmp_path, "b", 1, {5: 0.5}, key="train/loss")
    assert [view["said"] for view in compare_families([one, two])] == ["", ""]
    assert compare_families([one]) == []


def test_a_repetition_of_a_seed_stands_alone(tmp_path):
    runs = [run_of(tmp_path, "a", 1, {5: 0.5}), run_of(tmp_path, "b", 1, {5: 0.6})]
    again = run_of(tmp_path, "c", 1, {5: 0.7})
    again.family = "b"
    assert [view["runs"] for view in compare_families([*runs, again])] == [["a-1"], ["b-1"], ["c-1"]]


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
    assert "+8.0 points against a-1 (95 % interval +2.3 to +13.7, in pairs of the problems asked): better." in said
    runs[1].folder.evaluation_file(5).unlink()
    assert "(95 % interval −6.1 to +22.1, of the problems asked): within chance." in compare_families(runs)[1]["said"]
