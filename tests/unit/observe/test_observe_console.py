"""Golden screens stand in ``golden/``; after a wanted change: ``DAPO_WRITE_GOLDEN=1 pytest tests/unit/observe``."""

import io
import math
import os
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console as RichConsole

from dapo.errors import SamplingStopped
from dapo.observe.console import Console
from dapo.observe.live_view import RunState, dashboard, hint_lines
from dapo.observe.terminal_lines import sample_lines
from dapo.observe.why import LATER, why
from dapo.types.evidence import CollectProgress, Shares, Stillness

GOLDEN = Path(__file__).parent / "golden"
HOSTILE = "\x1b[2J\x1b]0;owned\x07[bold red]x[/] [link=http://evil]y\u202ez\x9b31m"


def screen(width, terminal=False):
    return RichConsole(
        width=width, file=io.StringIO(), force_terminal=terminal, color_system=None, legacy_windows=False, _environ={}
    )


def shown(console):
    return console.file.getvalue()


def check_golden(name, text):
    file = GOLDEN / name
    if os.environ.get("DAPO_WRITE_GOLDEN"):
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")


def evaluation(accuracy):
    return {
        "validation/accuracy": accuracy,
        "validation/accuracy_low": accuracy - 0.03,
        "validation/accuracy_high": accuracy + 0.02,
        "validation/greedy_accuracy": accuracy + 0.05,
        "validation/length_mean": 11.5,
        "validation/truncated_share": 0.003,
    }


def step_metrics(step):
    return {
        "reward/accuracy": 0.4 + 0.02 * step,
        "sampling/acceptance_rate": 0.54 - 0.003 * step,
        "train/entropy": 0.17 - 0.005 * step,
        "train/grad_norm": 0.4 + 0.1 * (step % 3),
        "response/length_mean": 12.7 - 0.1 * step,
        "response/truncated_share": 0.05 / step,
        "train/clip_high": 0.0018,
        "time/tokens_per_second": 4930.0,
        "reward/unscored": 3 if step == 23 else 0,
    }


def a_run(total=60):
    state = RunState("quickstart", total, 0, began=100.0)
    state.marks.append(100.0)
    state.add_validation(0, evaluation(0.367))
    for step in range(1, 24):
        state.add_step(step, step_metrics(step), 100.0 + 0.5 * step)
        if step % 10 == 0:
            state.add_validation(step, evaluation(0.5 + 0.015 * step))
    return state


@pytest.mark.parametrize("width", [80, 200])
def test_the_live_view_of_a_run(width):
    console = screen(width)
    console.print(dashboard(a_run(), width, now=112.0))
    assert {cell_len(line) for line in shown(console).splitlines()} == {width}
    check_golden(f"live_{width}.txt", shown(console))


@pytest.mark.parametrize("width", [80, 200])
def test_the_live_view_before_the_first_step(width):
    console = screen(width)
    console.print(dashboard(RunState("quickstart", 60, 0, began=0.0), width, now=0.0))
    check_golden(f"live_empty_{width}.txt", shown(console))


@pytest.mark.parametrize("width", [30, 40, 60, 79, 81, 120, 153, 154, 199, 201, 400])
def test_the_live_view_fits_any_width(width):
    console = screen(width)
    state = a_run(total=123456)
    state.name = HOSTILE * 10
    console.print(dashboard(state, width, now=1e6))
    lines = shown(console).splitlines()
    assert {cell_len(line.rstrip()) for line in lines} == {min(width, 200)}
    assert "\x1b" not in shown(console)


def a_plain_run(mode="plain", width=80):
    rich, now = screen(width), [0.0]
    console = Console(mode, rich, clock=lambda: now[0])
    with console.progress("warm-up", 8) as advance:
        for _ in range(8):
            now[0] += 4.0
            advance(1)
    console.start("quickstart", 60)
    console.step(0, evaluation(0.367))
    console.evaluation(0, evaluation(0.367))
    for step in range(1, 4):
        now[0] += 0.5
        console.step(step, step_metrics(step))
    with console.progress("evaluating", 4) as advance:
        advance(4)
    console.evaluation(
        3,
        evaluation(0.5)
        | {
            f"validation/{name}/{k.split('/')[1]}": v for name in ("aime", "task/x") for k, v in evaluation(0.5).items()
        },
    )
    console.sample("1 + 1 =", "2", 1.0)
    console.say("a message")
    console.warn("disk nearly full")
    console.finish("done")
    return shown(rich)


def test_plain_lines():
    text = a_plain_run()
    assert max(cell_len(line) for line in text.splitlines()) <= 90
    assert "\x1b" not in text
    check_golden("plain.txt", text)


def test_plain_lines_are_not_wrapped_where_nothing_knows_the_width():
    assert a_plain_run(width=20) == a_plain_run(width=80)


def test_quiet_shows_warnings_only():
    assert a_plain_run("quiet") == "warning: disk nearly full\n"


def test_live_in_a_terminal_ends_with_the_last_state_and_gives_the_cursor_back():
    rich, now = screen(80, terminal=True), [0.0]
    console = Console("auto", rich, clock=lambda: now[0])
    assert console.mode == "live"
    with console:
        console.start("quickstart", 60)
        with console.progress("evaluating", 4) as advance:
            advance(2)
            console._live.refresh()
            assert "evaluating" in shown(rich)
        for step in range(1, 24):
            now[0] += 0.5
            console.step(step, step_metrics(step))
        console.say("a message [bold]as it is[/bold]")
    text = shown(rich)
    assert text.rindex("step 23 of 60") > text.index("a message [bold]as it is[/bold]")
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1  # cursor hidden once, shown once


def test_a_progress_bar_before_the_run_leaves_one_line():
    rich = screen(80, terminal=True)
    console = Console("live", rich, clock=lambda: 1.0)
    with console.progress("warm-up", 10) as advance:
        advance(10)
    assert console._live is None
    assert shown(rich).endswith("warm-up: done in 0s\n")


def test_auto_is_plain_without_a_terminal():
    assert Console("auto", screen(80)).mode == "plain"


def test_a_resumed_run_tells_where_it_starts_and_counts_time_from_there():
    rich, now = screen(80), [0.0]
    console = Console("plain", rich, clock=lambda: now[0])
    console.start("r", 40, first_step=20)
    now[0] = 2.0
    console.step(21, step_metrics(21))
    assert shown(rich).splitlines()[0] == "r: from step 20 to 40"
    assert shown(rich).splitlines()[1].endswith("38s left")  # 19 steps at 2 s


@pytest.mark.parametrize("terminal", [False, True])
def test_hostile_text_is_shown_and_does_nothing(terminal):
    rich = screen(200, terminal=terminal)
    console = Console("live" if terminal else "plain", rich)
    console.sample(HOSTILE, HOSTILE, 0.0)
    console.say(HOSTILE)
    console.warn(HOSTILE)
    assert "\x1b" not in shown(rich)
    assert "\x9b" not in shown(rich)
    assert "\u202e" not in shown(rich)
    assert shown(rich).count("[bold red]x[/] [link=http://evil]y") == 4


def test_samples_are_marked_and_shortened():
    assert sample_lines("p", "r", 1.0).plain == "  ┃ p\n  ┃ r\n  ✓ accuracy 1"
    assert sample_lines("p", "r", 0.0, 0.0566667).plain.endswith("✗ accuracy 0, reward 0.0567")
    assert sample_lines("p", "r", 1.0, 1.0).plain.endswith("✓ accuracy 1")
    assert sample_lines("p", "a\nb", 0.25).plain == "  ┃ p\n  ┃ a\n  ┃ b\n  ✗ accuracy 0.25"
    assert sample_lines("p", "", None).plain == "  ┃ p\n  ┃ \n  ? unscored"
    assert len(sample_lines("p" * 10_000, "r" * 10_000, 1.0, limit=100).plain) < 250


def progress(step=24, kept=12, wanted=32, judged=40, shares=None):
    given = {"kept": 0.3, "all_wrong": 0.55, "all_correct": 0.15, "judged": judged, "prompts_per_step": wanted}
    return CollectProgress(
        step=step, kept=kept, wanted=wanted, judged=judged, shares=Shares(**{**given, **(shares or {})})
    )


@pytest.mark.parametrize("width", [80, 200])
def test_the_live_view_while_a_batch_fills(width):
    console, state = screen(width), a_run()
    state.filling = progress()
    console.print(dashboard(state, width, now=112.0))
    assert {cell_len(line) for line in shown(console).splitlines()} == {width}
    check_golden(f"live_filling_{width}.txt", shown(console))


@pytest.mark.parametrize("width", [30, 40, 60, 79, 120, 124, 200, 400])
def test_the_view_of_a_filling_batch_fits_any_width_and_keeps_its_height(width):
    heights = set()
    for filling in (
        progress(),
        progress(kept=32, judged=70),  # full: it trains
        progress(step=23, kept=35, judged=70),  # its step is done
        progress(
            kept=10**6, wanted=10**7, judged=10**8, shares={"uniform": 0.3, "out_of_band": 0.2, "too_few_scored": 0.1}
        ),
    ):
        console, state = screen(width), a_run()
        state.filling = filling
        console.print(dashboard(state, width, now=112.0))
        lines = shown(console).splitlines()
        heights.add(len(lines))
        assert {cell_len(line.rstrip()) for line in lines} == {min(width, 200)}
    assert len(heights) == 1


def test_only_a_batch_that_is_not_full_is_being_collected():
    for filling, word in (
        (progress(), "collecting 12 of 32 groups"),
        (progress(kept=33), "collected 33 groups"),
        (progress(step=23, kept=20), "collected 20 of 32 groups"),  # a smaller batch, whose step is done
    ):
        console, state = screen(120), a_run()
        state.filling = filling
        console.print(dashboard(state, 120, now=112.0))
        assert word in shown(console)


def filled(mode, terminal=False):
    """A console in the middle of a run, what it wrote so far taken away, and its clock."""
    rich, now = screen(200, terminal), [0.0]
    console = Console(mode, rich, clock=lambda: now[0])
    console.start("r", 60)

    def new():
        text = shown(rich)
        rich.file.seek(0)
        rich.file.truncate()
        return text

    new()
    return console, now, new


def test_a_step_that_fills_in_time_says_nothing():
    console, _, new = filled("plain")
    for judged in range(1, 128):
        console.filling(progress(judged=judged, kept=judged // 4))
    assert new() == ""


def test_a_batch_that_takes_long_is_told_at_each_doubling_with_its_cause():
    console, _, new = filled("plain")
    told, shares = [], {"kept": 0.05, "all_wrong": 0.9, "all_correct": 0.05}
    for judged in range(1, 1100):
        console.filling(progress(judged=judged, kept=1, shares=shares))
        told += [(judged, line) for line in new().splitlines()]
    assert [judged for judged, _ in told] == [128, 256, 512, 1024]  # 4, 8, 16 and 32 times the 32 wanted
    assert told[0][1].startswith(
        "step 24: 1 of 32 groups kept, 5% of those judged, 128 groups judged. 90% of the groups"
    )
    assert told[0][1].endswith(why(progress(shares=shares).shares, LATER))
    assert told[1][1] == "step 24: 1 of 32 groups kept, 5% of those judged, 256 groups judged."  # the cause is the same
    console.filling(progress(judged=5000, kept=32))  # full: nothing to complain of
    assert new() == ""


def test_a_batch_that_starves_is_told_before_it_takes_long_and_again_with_the_cap_in_view():
    console, _, new = filled("plain")
    told = []
    for judged in range(1, 160):
        shares = Shares(kept=(judged >= 32) / judged, all_wrong=1 - (judged >= 32) / judged, judged=judged)
        kept = int(judged >= 32)
        console.filling(CollectProgress(1, kept, wanted=8, judged=judged, shares=shares, cap_groups=160.0))
        told += [(judged, line) for line in new().splitlines()]
    assert [judged for judged, _ in told] == [16, 32, 64, 128]
    assert told[0][1].startswith("step 1: 0 of 8 groups kept, 0% of those judged, 16 groups judged; at this rate")
    assert all("cap.groups ends the search at 160" in line for _, line in told)
    assert ["too hard" in line for _, line in told] == [True, False, False, False]  # the cause once a step


def test_a_level_is_told_again_only_after_ten_steps():
    console, _, new = filled("plain")
    told = []
    for step in range(1, 25):
        judged = 300 if step == 5 else 130  # twice the level in step 5
        console.filling(progress(step=step, judged=judged, kept=1))
        told += [step] * len(new().splitlines())
    assert told == [1, 5, 15]


def test_plain_mode_shows_once_a_minute_that_a_batch_still_fills():
    console, now, new = filled("plain")
    told = []
    for second in range(200):
        now[0] = float(second)
        console.filling(progress(judged=100, kept=12))
        told += [(second, line) for line in new().splitlines()]
    assert [second for second, _ in told] == [60, 120, 180]
    assert told[0][1] == "step 24: 12 of 32 groups kept, 30% of those judged"
    now[0] = 230.0
    console.step(24, step_metrics(24))  # a step's line counts too
    new()
    now[0] = 289.0
    console.filling(progress(step=25))
    assert new() == ""
    now[0] = 290.0
    console.filling(progress(step=25))
    assert new() == "step 25: 12 of 32 groups kept, 30% of those judged\n"


def test_stillness_is_shown_after_a_minute_and_at_each_doubling_and_not_of_a_learner_at_work():
    console, _, new = filled("quiet")
    told = []
    for seconds in range(60, 1000, 5):
        console.stillness(Stillness(3, "score", float(seconds), 0.0, None), "nothing happened")
        told += [seconds for line in new().splitlines() if line == "warning: step 3: nothing happened"]
    assert told == [60, 120, 240, 480, 960]
    console.stillness(None, "")
    console.stillness(Stillness(4, "generate", 60.0, 0.0, None), "nothing happened again")
    assert new() == "warning: step 4: nothing happened again\n"
    console.stillness(Stillness(5, "learn", 600.0, 0.0, None), "it is learning")
    assert new() == ""


def test_live_mode_shows_the_batch_and_has_no_heartbeat():
    console, now, new = filled("live", terminal=True)
    with console:
        now[0] = 100.0
        console.filling(progress())
        console._live.refresh()
        text = new()
        assert "collecting 12 of 32 groups" in text
        assert "of those judged" not in text
        console.filling(progress(judged=128, kept=12))
        assert "of those judged, 128 groups judged. " in new()


def test_quiet_and_a_console_without_a_run_say_nothing_of_batches():
    console, now, new = filled("quiet")
    now[0] = 1e6
    console.filling(progress(judged=10**6))
    Console("plain", screen(80)).filling(progress(judged=10**6))
    assert new() == ""


# ------------------------------------------------------------------ what a narrow and a wide terminal show


WIDE = "学習の実験 – ablation of clip-higher with larger groups, third try, on data of its own " * 3
SETS = ("aime", "学" * 30, "a validation set with a rather long name of its own")


def transcript(width):
    """Lines of a whole run in a terminal in plain mode."""
    rich = RichConsole(file=io.StringIO(), width=width, force_terminal=True, color_system=None, highlight=False)
    now = [0.0]
    console = Console("plain", rich, clock=lambda: now[0])
    console.start(WIDE, 123456)
    for step in (1, 2, 23):
        now[0] += 3.0
        console.step(step, step_metrics(step) | {"time/tokens_per_second": 1_234_567.0})
    named = {f"validation/{name}/{key.split('/')[1]}": value for name in SETS for key, value in evaluation(1.0).items()}
    console.evaluation(123456, evaluation(1.0) | named)
    console.sample("学" * 100, "word " * 100 + "x" * 100, 0.0)
    return shown(rich).splitlines()


@pytest.mark.parametrize("width", [80, 200])
def test_no_line_of_a_terminal_is_wider_or_cut(width):
    lines = transcript(width)
    assert max(cell_len(line) for line in lines) <= width
    steps = [line for line in lines if line.startswith("step ") and "/123456" in line]
    assert len(steps) == 3
    assert all(line.rstrip().endswith("left") for line in steps)  # in one line, to its end
    assert all(("tok/s" in line) == (width == 200) for line in steps)  # what matters least goes first
    numbers = [line for line in lines if "100.0%" in line]
    assert len(numbers) == 1 + len(SETS)
    assert all(line.rstrip().endswith("truncated 0.3%") for line in numbers)
    columns = {cell_len(line[: line.index("100.0%")]) for line in numbers[1:]}
    assert len(columns) == 1  # under each other, also where letters are two cells wide
    assert sum(line.startswith("  ┃ ") for line in lines) >= (9 if width == 80 else 4)
    shown_answer = lines[lines.index(numbers[-1]) + 1 :]
    assert all(line.startswith("  ┃ ") for line in shown_answer[:-1])  # a broken line has its bar too


def test_an_evaluation_stays_one_line_in_a_terminal_too_narrow_for_it():
    rich = screen(40, terminal=True)
    console = Console("plain", rich, clock=lambda: 0.0)
    console.start("r", 60)
    console.evaluation(10, evaluation(0.5))
    assert [line.rstrip()[-1] for line in shown(rich).splitlines()] == ["s", "…"]


def dashboard_text(state, width, now=112.0):
    console = screen(width)
    console.print(dashboard(state, width, now=now))
    return shown(console)


@pytest.mark.parametrize("width", [80, 200])
def test_what_is_wrong_stands_under_the_tiles(width):
    state = RunState(WIDE, 60, 0, began=100.0)
    state.add_validation(0, evaluation(0.8))
    for step in range(1, 21):
        metrics = step_metrics(step) | {"train/entropy": 0.2 if step < 10 else 0.01, "train/clip_high": 0.05}
        state.add_step(step, metrics | {"response/truncated_share": 0.2, "reward/unscored": 7}, 100.0 + step)
    state.add_validation(20, evaluation(0.7))
    text = dashboard_text(state, width)
    assert {cell_len(line) for line in text.splitlines()} == {width}
    assert text.count("…") == 1  # the name alone is cut
    for said in (
        "held-out accuracy was 80.0% before, and fell",
        "entropy is at 5% of its beginning",
        "20% of the answers are cut off at rollout.max_response_tokens",
        "5% of the tokens are clipped",
        "7 responses unscored",
    ):
        assert said in text


def test_a_healthy_run_has_no_hints():
    assert hint_lines(a_run()) == ["3 responses unscored; the reasons are in rollouts/"]  # of its last step
    state = a_run()
    state.metrics = {"reward/unscored": math.nan}
    assert hint_lines(state) == []


def test_clipping_is_a_hint_only_where_it_is_token_by_token():
    state = RunState("a", 60, 30, 0.0, history={"train/clip_high": [0.001] * 5 + [0.3] * 5})
    assert hint_lines(state) == ["30% of the tokens are clipped: the steps may be too large"]
    state.clips_tokens = False  # whole responses with a sequence ratio: large by design
    assert hint_lines(state) == []


@pytest.mark.parametrize(
    ("last", "said"), [(0.765, []), (0.764, ["held-out accuracy was 80.0% before, and fell"])]
)  # intervals of 0.05: the difference is known to 0.0354
def test_a_fall_within_chance_is_no_hint(last, said):
    state = RunState("r", 60, 0, began=0.0)
    state.add_validation(0, evaluation(0.8))
    state.add_validation(10, evaluation(last))
    assert hint_lines(state) == said


@pytest.mark.parametrize(("last", "colour"), [(0.9, "32"), (0.3, "31")])
def test_held_out_accuracy_is_green_where_it_rose_and_red_where_it_fell(last, colour):
    state = RunState("r", 60, 0, began=0.0)
    state.add_validation(0, evaluation(0.5))
    state.add_validation(10, evaluation(last))
    rich = RichConsole(file=io.StringIO(), width=80, force_terminal=True, color_system="standard")
    rich.print(dashboard(state, 80, now=1.0))
    assert f"\x1b[1;{colour}m{100 * last:.1f}%" in shown(rich)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (KeyboardInterrupt, "left at once"),
        (SamplingStopped(None), "could not fill its batch"),
        (RuntimeError, "ended by an error"),
    ],
)
@pytest.mark.parametrize("width", [80, 200])
def test_the_last_picture_of_a_run_that_failed_says_so(width, error, said):
    rich = screen(width, terminal=True)

    def fails():
        with Console("live", rich, clock=lambda: 1.0) as console:
            console.start(WIDE, 60)
            console.step(1, step_metrics(1))
            raise error

    with pytest.raises(type(error) if isinstance(error, Exception) else error):
        fails()
    text = shown(rich)
    assert said in text[text.rindex("╭") :].splitlines()[0]
    assert text.endswith("\x1b[?25h")


def test_the_largest_reasons_for_dropping_come_first():
    state = a_run()
    state.filling = progress(shares={"kept": 0.1, "all_wrong": 0.2, "all_correct": 0.3, "uniform": 0.4})
    assert "10% kept · 40% uniform · 30% all correct · 20% all wrong" in dashboard_text(state, 80)


def test_a_run_that_is_done_has_nothing_left():
    state = RunState("r", 2, 0, began=0.0)
    state.marks.append(0.0)
    state.add_step(2, {}, 3.0)
    assert "done" in dashboard_text(state, 80, now=3.0)
    assert "left" not in dashboard_text(state, 80, now=3.0)


def unscored(accuracy, count, of, least, place=""):
    return {
        f"validation/{place}accuracy": accuracy,
        f"validation/{place}accuracy_low": math.nan if math.isnan(accuracy) else 0.3,
        f"validation/{place}accuracy_high": math.nan if math.isnan(accuracy) else 0.6,
        f"validation/{place}unscored": count,
        f"validation/{place}responses": of,
        f"validation/{place}accuracy_unscored_wrong": least,
        f"validation/{place}length_mean": 11.5,
    }


def test_unscored_held_out_responses_stand_in_the_line_with_their_reason():
    rich = screen(200)
    console = Console("plain", rich)
    console.start("r", 2)
    console.evaluation(0, unscored(1.0, 24, 40, 0.4375), {"set": "exception: KeyError: 'level'\x1b[2J"})
    console.evaluation(1, unscored(math.nan, 40, 40, 0.0), {"set": "timeout"})
    first, last = shown(rich).splitlines()[1:]
    assert first == (
        "step 0  held-out 100.0% (30.0–60.0)  24 of 40 unscored: exception: KeyError: 'level'␛[2J (43.8% if they are "
        "wrong)  length 11.5"
    )
    assert last == "step 1  held-out –  40 of 40 unscored: timeout (0.0% if they are wrong)  length 11.5"


def test_each_set_tells_its_own_reason():
    rich = screen(200)
    console = Console("plain", rich)
    console.start("r", 2)
    metrics = unscored(0.5, 3, 20, 0.4) | unscored(0.5, 3, 10, 0.3, "a/") | unscored(0.5, 0, 10, 0.5, "b/")
    console.evaluation(0, metrics, {"a": "crash"})
    mean, a, b = shown(rich).splitlines()[1:]
    assert "3 of 20 unscored (" in mean
    assert "3 of 10 unscored: crash (30.0%" in a
    assert "unscored" not in b


def test_a_step_that_judged_nothing_says_so():
    """It printed `accuracy –  kept –  entropy ...`."""
    rich = screen(120)
    console = Console("plain", rich)
    console.start("r", 9)
    console.step(1, {"groups/finished": 0, "train/entropy": 0.1})
    assert shown(rich).splitlines()[1].startswith("step 1/9  trained on groups judged before, none was new")
    assert "–" not in shown(rich)
