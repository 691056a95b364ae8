import io
import logging
import math
import re
from dataclasses import replace

import matplotlib.image
import pytest
from evaluated import evaluation
from rich.console import Console as RichConsole

from dapo.errors import DataError
from dapo.observe import summary as summary_module
from dapo.observe.console import Console
from dapo.observe.curve import terminal_curve, terminal_losses
from dapo.observe.evaluations import write_evaluation
from dapo.observe.metrics import MetricWriter, read_metrics
from dapo.observe.pictures import curve_figure, write, write_curve
from dapo.observe.run_folder import RunFolder
from dapo.observe.samples import Sample, before_and_after, read_samples, write_samples
from dapo.observe.summary import print_summary


def metrics_of(step):
    out = {"reward/accuracy": 0.4 + 0.01 * step, "groups/kept_share": 0.5, "train/entropy": 0.1} if step else {}
    if step % 10 == 0:
        accuracy = 0.367 + 0.01 * step
        out |= {
            "validation/accuracy": accuracy,
            "validation/accuracy_low": accuracy - 0.03,
            "validation/accuracy_high": accuracy + 0.03,
            "validation/greedy_accuracy": 0.3 + 0.015 * step,
        }
    return out


def sample(step, prompt, accuracy, response="r", **more):
    values = {"set": "s", "prompt_id": prompt, "prompt": prompt, "answer": "6", "length": 3, "truncated": False}
    return Sample(step=step, response=response, accuracy=accuracy, greedy=False, **(values | more))


@pytest.fixture
def run(tmp_path):
    run = RunFolder.create(tmp_path, "r")
    with MetricWriter(run.metrics) as writer:
        for step in range(31):
            writer.write(step, metrics_of(step))
    return run


def printed(run, width=80, next_command="dapo report it"):
    file = io.StringIO()
    print_summary(run, Console("plain", RichConsole(width=width, file=file, _environ={})), next_command)
    return file.getvalue()


@pytest.mark.parametrize(
    ("change", "colour"), [(0.2, "green"), (-0.2, "red"), (0.05, None), (-0.05, None), (0.0, None)]
)
def test_only_a_change_beyond_chance_has_a_colour(change, colour):
    """Intervals of 0.06 on both sides: their difference is uncertain by 0.042 x 2."""
    rows = [
        {
            "step": step,
            "validation/accuracy": value,
            "validation/accuracy_low": value - 0.06,
            "validation/accuracy_high": value + 0.06,
        }
        for step, value in ((0, 0.5), (10, 0.5 + change))
    ]
    (padded,) = [part for part in summary_module.outcome(rows).renderables if hasattr(part, "columns")]
    cell = next(iter(padded.columns[2].cells))
    assert [str(span.style) for span in cell.spans if span.style in ("green", "red")] == ([colour] if colour else [])


def test_the_summary_tells_before_and_after(run):
    write_samples(run.samples, [sample(0, "4 +7 =", 0.0, "=3"), sample(30, "4 +7 =", 1.0, "=11")])
    text = printed(run, next_command="dapo evaluate runs/r")
    lines = [line.rstrip() for line in text.splitlines()]
    assert "30 training steps" in lines
    assert "held-out               step 0     step 30" in lines
    assert "accuracy, sampled       36.7%       66.7%" in lines
    assert "95 % interval       33.7–39.7   63.7–69.7" in lines
    assert "accuracy, greedy        30.0%       75.0%" in lines
    assert "problem     4 +7 =   expected 6" in lines
    assert "step 0   ✗  =3" in lines
    assert "step 30  ✓  =11" in lines
    assert lines[-1] == "next: dapo evaluate runs/r"
    assert "100┤" in text  # the terminal's curve
    assert f"curve         {run.curve}" in lines  # whole, to be copied
    assert "truncated" not in text  # not measured in this run


def test_the_summary_of_hostile_and_long_answers_stays_harmless_and_narrow(run):
    hostile = "\x1b[2J[bold]" + "x" * 1000
    write_samples(run.samples, [sample(0, hostile, None, hostile), sample(30, hostile, 0.5, hostile, truncated=True)])
    text = printed(run)
    assert "\x1b" not in text
    assert "␛[2J[bold]" in text
    assert "cut at the limit" in text
    problem = text[text.index("problem ") : text.index("curve ")]
    assert max(map(len, problem.splitlines())) <= 80


def test_a_run_without_evaluation_says_so(tmp_path):
    run = RunFolder.create(tmp_path, "r")
    assert "Nothing was evaluated" in printed(run)


def test_a_picture_that_cannot_be_drawn_stops_nothing(run, monkeypatch, caplog):
    def broken(_):
        raise RuntimeError("no fonts")

    monkeypatch.setattr(summary_module, "write_curve", broken)
    with caplog.at_level(logging.WARNING):
        assert "66.7%" in printed(run)
    assert "no fonts" in caplog.text


def test_curve_png(run):
    assert write_curve(run) == run.curve
    assert matplotlib.image.imread(run.curve).shape[:2] == (900, 1350)
    upper = curve_figure(read_metrics(run.metrics), "r").axes[0]
    steps, values = upper.get_lines()[0].get_data()  # held-out accuracy rises
    assert (list(steps), values[-1] - values[0] > 0.2) == ([0, 10, 20, 30], True)
    assert sorted(p.name for p in run.path.iterdir()) == ["curve.png", "lock", "metrics.jsonl"]


@pytest.mark.parametrize("rows", [[], [{"step": 0, "validation/accuracy": 0.5}], [{"step": 1, "train/entropy": None}]])
def test_curve_of_hardly_anything(tmp_path, rows):
    write(curve_figure(rows, "r"), tmp_path / "curve.png")
    assert (tmp_path / "curve.png").stat().st_size > 1000
    assert terminal_curve(rows, 60) is None


def test_terminal_curve_has_its_width_and_rises():
    rows = [{"step": s, "validation/accuracy": s / 10} for s in range(0, 11, 5)]
    lines = terminal_curve(rows, 60).plain.splitlines()
    assert max(map(len, lines)) == 60
    canvas = [line.split("┤", 1)[1] if "┤" in line else line[4:] for line in lines[1:12]]
    heights = {x: y for y, line in enumerate(canvas) for x, c in enumerate(line) if "▀" <= c <= "▟"}  # quarter blocks
    assert heights[min(heights)] == 10  # 0 % stands on the lowest line, at the left
    assert heights[max(heights)] == 0


def test_no_legend_covers_a_terminal_curve():
    rows = [{"step": s, "validation/accuracy": 0.01, "validation/greedy_accuracy": 0.02} for s in range(0, 11, 5)]
    assert not {"sampled", "greedy"} & set(terminal_curve(rows, 60).plain.split())
    out = RichConsole(file=io.StringIO(), width=100)
    out.print(summary_module.summary(rows, [], 100))
    assert "by training step; blocks: sampled, dots: greedy" in out.file.getvalue()


def test_a_supervised_run_ends_with_the_curve_of_its_losses():
    rows = [{"step": s, "sft/epoch": s / 10, "train/loss": 2.0 - s / 10} for s in range(1, 11)]
    rows[-1]["validation/loss"] = 1.5
    drawn = terminal_losses(rows, 60).plain
    dots = [n for n, line in enumerate(drawn.splitlines()) if any("\u2800" < c <= "\u28ff" for c in line)]
    assert len(dots) > 3  # the line falls
    out = RichConsole(file=io.StringIO(), width=100)
    out.print(summary_module.summary(rows, [], 100))
    assert "loss, nats a token, by training step; blocks: held out, dots: training" in out.file.getvalue()
    assert drawn.splitlines()[3].split("│")[0] in out.file.getvalue()
    assert terminal_losses(rows[:1], 60) is None


@pytest.mark.parametrize(("steps", "printed"), [(10, 10), (100, 20), (1010, 20)])
def test_a_supervised_run_prints_few_of_its_steps(steps, printed, caplog):
    out = RichConsole(file=io.StringIO(), width=100)
    with caplog.at_level("INFO"), Console("plain", out) as console:
        console.start("r", steps)
        for step in range(1, steps + 1):
            console.step(step, {"sft/epoch": 0.1, "train/loss": 1.0})
    lines = [line for line in out.file.getvalue().splitlines() if line.startswith("step ")]
    assert len(lines) == printed
    assert lines[-1].startswith(f"step {steps}/{steps}")
    assert sum("loss 1" in record.getMessage() for record in caplog.records) == steps  # the log has them all


@pytest.mark.parametrize("last", [1, 3, 4, 60, 100, 4000])
def test_the_steps_under_a_terminal_curve_are_whole_numbers(last):
    rows = [{"step": s, "validation/accuracy": 0.5} for s in (0, last)]
    marked = terminal_curve(rows, 60).plain.splitlines()[-1].split()
    assert all(mark.isdigit() for mark in marked), marked
    assert (int(marked[0]), int(marked[-1])) == (0, last)
    assert len({*marked}) == len(marked)


@pytest.mark.parametrize(
    ("after", "said"), [(1.0, "those that gained most"), (0.0, "none went from wrong to right"), (None, "none went")]
)
def test_answers_are_said_to_have_gained_only_where_they_did(after, said):
    out = RichConsole(file=io.StringIO(), width=120)
    rows = [{"step": step, **metrics_of(step)} for step in (0, 10)]
    out.print(summary_module.summary(rows, [sample(0, "p", 0.0), sample(10, "p", after)], 100))
    assert said in out.file.getvalue()


def test_answers_that_were_lost_stand_beside_those_that_gained():
    out = RichConsole(file=io.StringIO(), width=120)
    rows = [{"step": step, **metrics_of(step)} for step in (0, 10)]
    changes = {"won": (0.0, 1.0), "same": (1.0, 1.0), "still": (1.0, 1.0), "lost": (1.0, 0.0), "less": (1.0, 0.5)}
    samples = [sample(10 * n, name, pair[n]) for n in (0, 1) for name, pair in changes.items()]
    assert [before.prompt_id for before, _ in before_and_after(samples, lost=True)] == ["lost", "less"]
    out.print(summary_module.summary(rows, samples, 100))
    gained, _, lost = out.file.getvalue().partition("those that lost most")
    assert "those that gained most" in gained
    assert lost.count("✗") == 2  # the answers of today
    out = RichConsole(file=io.StringIO(), width=120)
    out.print(summary_module.summary(rows, [s for s in samples if s.prompt_id in ("won", "lost")], 100))
    assert "lost most" not in out.file.getvalue()  # both are shown already


def test_before_and_after_pairs_the_same_problems_gains_first():
    samples = [
        sample(0, "a", 1.0),
        sample(0, "b", 0.0),
        sample(0, "c", None),
        sample(0, "gone", 0.0),
        sample(10, "b", 0.5),
        sample(20, "a", 1.0),
        sample(20, "b", 1.0),
        sample(20, "c", 0.0),
    ]
    pairs = before_and_after(samples)
    assert [(x.prompt_id, x.step, y.prompt_id, y.step) for x, y in pairs] == [
        ("b", 0, "b", 20),
        ("a", 0, "a", 20),
        ("c", 0, "c", 20),
    ]
    assert len(before_and_after(samples, 1)) == 1
    greedy = [replace(s, greedy=True, accuracy=0.0 if s.step < 20 else 1.0) for s in samples]
    both = before_and_after([*samples, *greedy])
    assert [(x.prompt_id, x.greedy) for x, _ in both] == [("b", False), ("a", True), ("c", True)]  # each problem once
    assert before_and_after(samples[:4]) == []
    assert before_and_after([]) == []


def test_samples_round_trip_and_refusal(tmp_path):
    path = tmp_path / "samples.jsonl"
    assert read_samples(path) == []
    samples = [sample(0, "a\n\ud800", None)]
    write_samples(path, samples)
    assert read_samples(path) == samples
    path.write_text('{"step": 1}\n')
    with pytest.raises(DataError, match="no sample"):
        read_samples(path)


def test_evaluations_that_could_not_be_scored_are_not_none(tmp_path):
    """It said that no evaluation was made, after three."""
    run = RunFolder.create(tmp_path, "r")
    with MetricWriter(run.metrics) as metrics:
        for step in range(3):
            metrics.write(step, {"validation/accuracy": math.nan, "validation/problems": 20, "validation/unscored": 60})
    text = " ".join(printed(run).split())
    assert "3 evaluations were made, and no response in it could be scored" in text
    assert "No evaluation" not in text


def test_unscored_responses_stand_beside_the_accuracy(tmp_path):
    run = RunFolder.create(tmp_path, "r")
    with MetricWriter(run.metrics) as metrics:
        metrics.write(
            0,
            {
                "validation/accuracy": 1.0,
                "validation/accuracy_unscored_wrong": 0.4375,
                "validation/problems": 8,
                "validation/unscored": 24,
            },
        )
    assert re.search(r"if unscored are wrong +43\.8%", printed(run))


def test_the_values_of_a_column_on_which_accuracy_fell_are_named(run):
    columns = [{"level": 1 + n // 30} for n in range(60)]
    for step, right in ((0, [[1.0, 0.0]] * 60), (30, [[1.0, 1.0]] * 30 + [[0.0, 0.0]] * 30)):
        write_evaluation(run.evaluation_file(step), step, evaluation(right, columns=columns))
    text = " ".join(printed(run).split())
    assert "level = 2, from 50.0% to 0.0% (30 problems of held_out; by" in text
    assert "level = 1" not in text
    write_evaluation(run.evaluation_file(30), 30, evaluation([[1.0, 0.0]] * 60, columns=columns))
    assert "level" not in printed(run)
