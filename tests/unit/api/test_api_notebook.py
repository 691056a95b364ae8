"""The display of a notebook, against a small fake of IPython's public calls."""

import sys
from types import SimpleNamespace

import pytest

from dapo.api.check import Report
from dapo.api.notebook import NotebookProgress, console_for, in_notebook
from dapo.api.run import curve_svg
from dapo.types.events import EndEvent, EvaluationEvent, StartEvent, StepEvent


@pytest.fixture
def pages(monkeypatch):
    """What the one display showed, in order."""
    shown = []
    handle = SimpleNamespace(update=shown.append)

    def display(page, display_id):
        assert display_id is True
        shown.append(page)
        return handle

    shell = SimpleNamespace(config={"IPKernelApp": {}})
    fake = SimpleNamespace(display=SimpleNamespace(HTML=str, display=display), get_ipython=lambda: shell)
    monkeypatch.setitem(sys.modules, "IPython", fake)
    monkeypatch.setitem(sys.modules, "IPython.display", fake.display)
    return shown


def test_one_display_goes_from_the_start_to_the_end(pages, tmp_path):
    progress = NotebookProgress()
    progress.start(StartEvent("sums <b>", tmp_path, 0, 4, {}))
    progress.evaluation(EvaluationEvent(0, {"validation/accuracy": 0.25}))
    progress.step(StepEvent(0, {"validation/accuracy": 0.25}))
    progress.step(StepEvent(1, {"reward/accuracy": 0.5}))
    progress.step(StepEvent(2, {"reward/accuracy": float("nan"), "validation/accuracy": 0.75}))
    progress.end(EndEvent(2, False, "Ctrl-C"))
    assert "sums &lt;b&gt;" in pages[0]
    assert "held-out accuracy 25.0%" in pages[1]
    assert "step 1 of 4, accuracy 50.0%" in pages[3]
    assert 'value="2" max="4"' in pages[4]
    assert "stopped and saved after step 2: Ctrl-C" in pages[-1]
    assert pages[-1].count("<polyline") == 2
    assert not any("nan" in page for page in pages)


def test_a_kernel_is_told_from_a_terminal(pages, monkeypatch):
    assert in_notebook()
    console, more = console_for("auto")
    assert console.mode == "quiet"
    assert [type(callback) for callback in more] == [NotebookProgress]
    assert console_for("plain")[1] == []
    monkeypatch.setattr(sys.modules["IPython"], "get_ipython", lambda: None)
    assert not in_notebook()


def test_the_curve_is_drawn_to_scale():
    picture = curve_svg([{"step": 0, "validation/accuracy": 0.0}, {"step": 10, "validation/accuracy": 1.0}], 160, 140)
    assert 'points="40.0,110.0 140.0,10.0"' in picture
    assert curve_svg([]) == ""


def test_a_report_shows_itself_and_is_good_whatever_this_machine_lacks():
    sections = {"arithmetic": ("1 < 2",), "would not start on this machine": ("runs/quickstart exists",)}
    report = Report(sections)
    assert report.good
    page = report._repr_html_()
    assert page.startswith("<p><b>This machine cannot run the recipe as it is now.</b>")
    assert page.index("runs/quickstart exists") < page.index("1 &lt; 2")
    assert "<details open><summary>would not start" in page
    assert "<details><summary>arithmetic" in page
    doubtful = Report({"look at this before you start": ("wrong answers are right",)})
    assert not doubtful.good
    assert not Report({"settle this before you start": ("it takes 9 days",)}).good
    assert "has doubts" in doubtful._repr_html_()
    assert str(doubtful).startswith(doubtful.verdict)
    assert "has doubts" in doubtful.verdict
