import pytest

from dapo.observe.run_folder import RunFolder
from dapo.report.compare import bands_of, families, labels_of
from dapo.report.reader import RunContents, read_run


def made(tmp_path, name, family="f", **series):
    """A run whose rows are made of series {key: {step: value}}."""
    (tmp_path / name).mkdir(parents=True)
    steps = sorted({step for values in series.values() for step in values})
    rows = [{"step": s, **{k: v[s] for k, v in series.items() if s in v}} for s in steps]
    seed = len(list(tmp_path.iterdir()))  # another for each run
    return RunContents(RunFolder(tmp_path / name), name.split("/")[-1], rows=rows, family=family, seed=seed)


def test_a_band_by_hand(tmp_path):
    one = made(tmp_path, "one", a={1: 1.0, 2: 2.0, 3: 3.0, 4: 9.0})
    two = made(tmp_path, "two", a={1: 3.0, 2: None, 3: 6.0})
    three = made(tmp_path, "three", a={1: 5.0, 2: 8.0, 3: 0.0, 4: 1.0}, b={1: 1.0})
    # step 4 is missing in one run, and at step 2 one has no number; b is known of one run alone
    assert bands_of([one, two, three]) == {"f": {"a": {"steps": [1, 3], "mean": [3, 3], "low": [1, 0], "high": [5, 6]}}}


def test_a_run_that_ended_early_or_was_not_evaluated_silences_no_band(tmp_path):
    one = made(tmp_path, "one", a={1: 1.0, 2: 2.0, 3: 3.0}, b={2: 0.5})
    two = made(tmp_path, "two", a={1: 3.0, 2: 4.0, 3: 5.0}, b={2: 0.7})
    killed, unasked = made(tmp_path, "killed", a={1: 9.0}), made(tmp_path, "unasked", a={1: 2.0, 2: 3.0, 3: 4.0})
    bands = bands_of([unasked, killed, one, two])["f"]
    assert bands["a"] == {"steps": [1, 2, 3], "mean": pytest.approx([2, 3, 4]), "low": [1, 2, 3], "high": [3, 4, 5]}
    assert bands["b"] == {"steps": [2], "mean": pytest.approx([0.6]), "low": [0.5], "high": [0.7]}
    assert bands_of([one, killed]) == {}


def test_long_bands_compare_the_means_of_stretches(tmp_path):
    one = made(tmp_path, "one", a={n: float(n) for n in range(8)})
    two = made(tmp_path, "two", a={n: float(n + 2) for n in range(8)})
    band = bands_of([one, two], points=4)["f"]["a"]
    assert band["steps"] == [0, 2, 5, 7]
    assert band["mean"] == pytest.approx([1, 3, 6, 8])
    assert band["low"] == pytest.approx([0, 2, 5, 7])
    assert band["high"] == pytest.approx([2, 4, 7, 9])


def test_only_runs_that_differ_in_seed_and_name_are_a_family(tmp_path, make_run):
    one = read_run(make_run(tmp_path / "one", seed=1))
    two = read_run(make_run(tmp_path / "two", seed=2))
    other = read_run(make_run(tmp_path / "other", seed=2, settings={"algorithm": {"overlong_filtering": False}}))
    found = families([one, two, other])
    assert [run.name for run in found[one.family]] == ["one", "two"]
    assert len(found) == 1
    band = bands_of([one, two, other])[one.family]["reward/accuracy"]
    # made_runs: seeds differ by 0.01 in accuracy
    assert [h - low for h, low in zip(band["high"], band["low"], strict=True)] == pytest.approx([0.01] * 12, abs=1e-6)


def test_a_run_and_its_repetition_are_no_sample_of_seeds(tmp_path, make_run):
    runs = [read_run(make_run(tmp_path / name, seed=seed)) for name, seed in (("one", 1), ("again", 1), ("two", 2))]
    assert families(runs) == {}
    assert len(families(runs[1:])) == 1


def test_unknown_recipes_are_no_family(tmp_path):
    assert families([made(tmp_path, "one", "", a={1: 1.0}), made(tmp_path, "two", "", a={1: 1.0})]) == {}


def test_labels_tell_runs_apart(tmp_path):
    def labels(*names):
        return labels_of([RunContents(RunFolder(tmp_path / name), name.split("/")[-1]) for name in names])

    assert labels("a", "b") == ["a", "b"]
    assert labels("x/a", "y/a", "b") == ["x/a", "y/a", f"{tmp_path.name}/b"]
    assert labels("a", "a", "a") == ["a", "a (2)", "a (3)"]
    assert labels() == []
