"""The pictures: which are made, what each line holds, how runs, seeds and hostile names are told apart."""

from __future__ import annotations

import numpy as np
import pytest
from made_rows import rows, run_of

from dapo.observe.pictures import COLOURS, PICTURES, _plain, picture
from dapo.report.bundle import bundle_of
from dapo.report.reader import read_run
from dapo.report.write import _name, draw, what_is_drawn


def bundle(*runs):
    return bundle_of(list(runs), live=True)


def panels(made, name):
    """Axes by title of one picture."""
    drawn = what_is_drawn(made["runs"], made["bands"])
    figure = picture(*PICTURES[name], drawn)
    return {axes.get_title(loc="left"): axes for axes in figure.axes}


def png_size(path):
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")


@pytest.mark.whole
def test_three_pictures_of_a_readme_s_width(tmp_path):
    made = bundle(run_of(rows(60)))
    paths = draw(made["runs"], made["bands"], tmp_path / "pictures")
    assert [path.name for path in paths] == ["learning.png", "health.png", "cost.png"]
    assert {png_size(path)[0] for path in paths} == {1350}
    assert sorted(p.name for p in (tmp_path / "pictures").iterdir()) == ["cost.png", "health.png", "learning.png"]
    draw(made["runs"], made["bands"], tmp_path / "pictures")  # over those of an earlier report


def test_a_run_without_rows_has_no_pictures_and_makes_no_folder(tmp_path):
    made = bundle(run_of([], state="failed"))
    assert draw(made["runs"], made["bands"], tmp_path / "pictures") == []
    assert not (tmp_path / "pictures").exists()


def test_a_run_with_one_evaluation_has_what_there_is(tmp_path):
    made = bundle(run_of(rows(0), state="failed"))
    assert [path.name for path in draw(made["runs"], made["bands"], tmp_path)] == ["learning.png"]
    line = panels(made, "learning")["held-out accuracy and its 95% interval"].get_lines()[0]
    assert (list(line.get_xdata()), line.get_marker()) == ([0], "o")
    texts = [text.get_text() for text in panels(made, "learning")["reward before shaping"].texts]
    assert texts == ["not measured"]


def test_lines_hold_the_run_s_numbers():
    made_rows = rows(60)
    shown = panels(bundle(run_of(made_rows)), "health")
    entropy = shown["entropy of the policy, nats a token"].get_lines()[0]
    assert list(entropy.get_xdata()) == list(range(1, 61))
    np.testing.assert_allclose(entropy.get_ydata(), [row["train/entropy"] for row in made_rows[1:]], rtol=1e-6)
    low, high = shown["tokens whose gradient the clip cut, %"].get_lines()  # no line for a dual clip that is off
    np.testing.assert_allclose(low.get_ydata(), 0.4)  # a share of 0.004, in per cent
    np.testing.assert_allclose(high.get_ydata(), 0.1)
    assert low.get_color() != high.get_color()


def test_the_interval_lies_around_the_accuracy():
    axes = panels(bundle(run_of(rows(60))), "learning")["held-out accuracy and its 95% interval"]
    (band,) = axes.collections
    corners = band.get_paths()[0].vertices
    assert corners[:, 1].min() == pytest.approx(0.38)  # 0.42 - 0.04
    assert corners[:, 1].max() == pytest.approx(0.94)


def test_several_runs_have_colours_and_a_metric_its_style(tmp_path, make_run):
    made = bundle(*(read_run(make_run(tmp_path / name, how=how)) for name, how in (("a", "good"), ("b", "collapsed"))))
    axes = panels(made, "learning")["accuracy on training prompts"]
    looks = {(line.get_color(), line.get_linestyle()) for line in axes.get_lines()}
    assert {colour for colour, _ in looks} == set(COLOURS[:2])
    drawn = what_is_drawn(made["runs"], made["bands"])
    assert [(each.name, each.colour) for each in drawn] == [("a", COLOURS[0]), ("b", COLOURS[1])]


def test_many_runs_leave_room_for_one_metric(tmp_path, make_run):
    names = [("a", "good"), ("b", "collapsed"), ("c", "crashed")]
    made = bundle(*(read_run(make_run(tmp_path / name, how=how)) for name, how in names))
    shown = panels(made, "learning")
    assert len(shown["accuracy on training prompts: all groups"].get_lines()) == 3
    assert what_is_drawn(made["runs"], made["bands"])[2].name == "c (ended by an error, step 12)"


def test_seeds_are_a_band_with_their_mean(tmp_path, make_run):
    runs = [read_run(make_run(tmp_path / f"try_s{seed}", seed=seed)) for seed in (1, 2, 3)]
    made = bundle(*runs)
    (family,) = what_is_drawn(made["runs"], made["bands"])
    assert family.name == "try (3 seeds)"
    axes = panels(made, "learning")["accuracy on training prompts"]
    values = np.array([[row["reward/accuracy"] for row in run.rows[1:]] for run in runs])
    mean = max(axes.get_lines(), key=lambda line: line.get_linewidth())
    np.testing.assert_allclose(mean.get_ydata(), values.mean(axis=0), rtol=1e-5)
    corners = axes.collections[0].get_paths()[0].vertices
    assert corners[:, 1].min() == pytest.approx(values.min(), rel=1e-5)
    assert corners[:, 1].max() == pytest.approx(values.max(), rel=1e-5)


def test_the_same_seed_twice_is_no_spread(tmp_path, make_run):
    made = bundle(*(read_run(make_run(tmp_path / name)) for name in ("a", "b")))
    assert [each.name for each in what_is_drawn(made["runs"], made["bands"])] == ["a", "b"]


def test_a_shorter_seed_does_not_hide_the_longer_one(tmp_path, make_run):
    long = read_run(make_run(tmp_path / "s1", steps=12, wanted=12, seed=1))
    short = read_run(make_run(tmp_path / "s2", steps=5, wanted=12, seed=2))
    axes = panels(bundle(long, short), "learning")["accuracy on training prompts"]
    assert max(max(line.get_xdata()) for line in axes.get_lines()) == 12


@pytest.mark.whole
def test_names_are_shown_as_they_are(tmp_path, make_run):
    assert _plain("a$x$ _b_") == r"a\$x\$ _b_"
    assert _plain("_hidden") == " _hidden"
    assert _plain("a\nb\x1b") == "a b␛"
    assert len(_plain("x" * 500)) <= 71
    labels = [{"label": name} for name in ("ppo-seed1", "ppo-seed2")]
    assert _name(labels) == "ppo (2 seeds)"
    assert _name([{"label": "a"}, {"label": "b"}]) == "a, b"
    folder = tmp_path / r"$\frac{学$ _^"
    folder.mkdir()
    made = bundle(read_run(make_run(folder / "run$")), read_run(make_run(folder / "_x")))
    assert len(draw(made["runs"], made["bands"], tmp_path / "out")) == 3


def test_seconds_are_stacked_by_phase_and_a_slow_step_does_not_flatten_them():
    slow = rows(60, time__save=lambda step: 500.0 if step == 30 else 0.0)
    axes = panels(bundle(run_of(slow)), "cost")["seconds of a step"]
    assert len(axes.collections) == 5  # four phases and the rest
    assert axes.get_ylim()[1] < 1
    assert axes.get_legend().get_texts()[0].get_text() == "save"  # the largest first


@pytest.mark.whole
def test_a_diverged_run_can_be_drawn(tmp_path):
    wild = rows(60, train__grad_norm_max=lambda step: 10.0 ** (step / 2), train__entropy=None, reward__raw=-1e300)
    made = bundle(run_of(wild))
    assert len(draw(made["runs"], made["bands"], tmp_path)) == 3
    assert panels(made, "health")["gradient norm"].get_yscale() == "log"
