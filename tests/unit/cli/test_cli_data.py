"""``dapo data`` on made-up run folders, figures by hand."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from evaluated import evaluation
from rich.cells import cell_len
from run_folder_for_tests import make_history, make_prompts, make_run, row, step_row

from dapo.cli.main import main
from dapo.errors import DataError
from dapo.observe.evaluations import write_evaluation
from dapo.observe.rollouts import write_rollouts
from dapo.observe.status import StatusWriter
from dapo.types.batch import Group, Prompt, Response, Score, content_id
from dapo.types.enums import FinishReason, Verdict
from dapo.types.evidence import CollectProgress, Shares

HOSTILE = "\x1b[2J\x1b]0;owned\x07[bold red]x[/] y\u202ez\x9b31m"


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")


def history(prompts: list[Prompt], **extra: Any) -> dict[str, Any]:
    """Of ten prompts: 2 solved, 3 hopeless, 1 mixed, 1 out of the band, 1 unjudged, 2 unseen."""
    rows = [
        row(2, Verdict.ALL_CORRECT, 4, step=3, before=2),
        row(1, Verdict.ALL_CORRECT, 4, step=1),
        row(1, Verdict.ALL_WRONG, 0, step=2),
        row(4, Verdict.ALL_WRONG, 0, step=3, before=3),
        row(2, Verdict.ALL_WRONG, 0, step=3),
        row(1, Verdict.KEPT, 1, step=2),
        row(1, Verdict.OUT_OF_BAND, 3, step=2),
        (1, 0, 0, 0, 0, 0, 3, list(Verdict).index(Verdict.TOO_FEW_SCORED)),
    ]
    return make_history({p.id: r for p, r in zip(prompts, rows, strict=False)}, len(prompts), **extra)


def told(capsys: pytest.CaptureFixture[str], *arguments: Any, code: int = 0) -> str:
    assert main(["data", *map(str, arguments)]) == code
    out, err = capsys.readouterr()
    return err if code else out


def words(text: str, start: str) -> list[str]:
    """The words of the one line that starts with ``start``."""
    (line,) = [line for line in text.splitlines() if line.strip().startswith(start)]
    return line.split()


def test_a_supervised_run_is_refused_by_what_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "r", prompts=make_prompts(2), rows=[step_row(1)])
    recipe = run / "recipe.resolved.yaml"
    recipe.write_text(recipe.read_text().replace("stage: train", "stage: sft"))
    assert "supervised run" in told(capsys, run, code=DataError.exit_code)


def test_the_overview(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = make_prompts(10)
    run = make_run(tmp_path / "r", prompts=prompts, history=history(prompts), rows=[step_row(s) for s in (1, 2, 3)])
    text = told(capsys, run)
    assert "r  step 3 of 100  10 prompts, as of step 3" in text
    assert words(text, "solved  ")[1:5] == ["2", "20.0%", "1.5", "100.0%"]
    assert words(text, "useful  ")[1:5] == ["2", "20.0%", "1.0", "50.0%"]
    assert words(text, "out of band")[3:7] == ["1", "10.0%", "1.0", "75.0%"]
    assert words(text, "hopeless  ")[1:5] == ["3", "30.0%", "2.3", "0.0%"]
    assert words(text, "unjudged  ")[1:5] == ["1", "10.0%", "1.0", "–"]
    assert words(text, "never seen  ")[2:4] == ["2", "20.0%"]
    # last visits: 2 x 4/4, 3 x 0/4, 1/4, 3/4; all visits: 6/8, 4/4, 0, 3/16, 0, 1/4, 3/4
    assert words(text, "seen  ")[1:5] == ["8", "80.0%", "1.6", "42.9%"]
    assert "over all visits 42.0%" in text
    # the histogram: its longest bar has 40 characters
    assert words(text, "0%") == ["0%", "3", "█" * 40]
    assert words(text, "0–20%") == ["0–20%", "0"]
    assert words(text, "20–40%") == ["20–40%", "1", "█" * 13]
    assert words(text, "100%") == ["100%", "2", "█" * 27]
    assert words(text, "80–100%") == ["80–100%", "0"]
    # examples: most visits first, longest ago first
    assert text.index("problem 3\n") < text.index("problem 4\n") < text.index("problem 2\n")
    assert text.index("problem 1\n") < text.index("problem 0\n")
    assert "0 of 4 correct at step 3, 4 visits, 3 of 16 in all · answer 3" in text
    assert "no vote at step 3, 1 visit · answer 7" in text
    assert "sources" not in text
    assert "GRESO" not in text
    assert "retired" not in text


def test_where_the_tokens_went(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [step_row(s) for s in (1, 2, 3)]
    rows[-1] |= {"total/cost/expired_tokens": 300, "cost/expired_seconds": 0.5, "total/cost/rejected_tokens": 1500}
    text = told(capsys, make_run(tmp_path / "r", rows=rows))
    assert words(text, "trained  ")[1:4] == ["1,150", "38.3%", "–"]
    assert words(text, "rejected  ")[1:4] == ["1,500", "50.0%", "6.00"]  # 2 s in each of three steps
    assert words(text, "expired  ")[1:4] == ["300", "10.0%", "0.500"]
    assert words(text, "held  ")[1:4] == ["50", "1.7%", "–"]
    assert words(text, "generated  ")[1:4] == ["3,000", "100.0%", "12.0"]
    assert "discarded" not in text
    assert "filled" not in text
    assert "groups kept: 40.0% in the first step, 40.0% in the last, 40.0% on average" in text
    assert "30 groups judged in the last 3 steps: 40.0% kept, 20.0% all correct, 40.0% all wrong." in text
    assert "Nothing to mend: 40% of the groups are kept, a batch of 4 takes about 10 groups." in text


def test_only_the_last_ten_steps_say_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [step_row(s, kept=9, all_wrong=1, all_correct=0) for s in range(1, 30)]
    rows += [step_row(s, kept=1, all_wrong=9, all_correct=0) for s in range(30, 40)]
    text = told(capsys, make_run(tmp_path / "r", rows=rows))
    assert "100 groups judged in the last 10 steps: 10.0% kept, 90.0% all wrong." in text
    assert "90% of the groups are all wrong: the problems are too hard" in text
    assert f"Look at {tmp_path}" in text.replace("\n  ", " ")


def test_earlier_pass_rates_of_hopeless_prompts_answer_for_larger_groups(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = make_prompts(40)
    rows = {p.id: row(3, Verdict.ALL_WRONG, 0, before=1) for p in prompts[:20]}  # 1 of 8 before the last visit
    rows |= {p.id: row(1, Verdict.ALL_WRONG, 0) for p in prompts[20:]}  # judged once: says nothing
    metrics = [step_row(1, kept=0, all_wrong=20, all_correct=0)]
    text = told(capsys, make_run(tmp_path / "r", prompts=prompts, history=make_history(rows, 40), rows=metrics))
    small, large = (100 * (1 - 0.125**g - 0.875**g) for g in (4, 16))
    said = " ".join(text.split())
    assert f"the 20 prompts that were all wrong at their last visit and judged before, {small:.0f}% of" in said
    assert f"groups of 4 are mixed, {large:.0f}% of 16." in said


def test_lists(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = make_prompts(10)
    run = make_run(tmp_path / "r", prompts=prompts, history=history(prompts), rows=[step_row(3)])

    def listed(text: str) -> list[int]:
        return [int(line.split()[1]) for line in text.splitlines() if line.startswith("  problem ")]

    assert listed(told(capsys, run, "--show", "hopeless")) == [3, 4, 2]
    assert listed(told(capsys, run, "--show", "hopeless", "--limit", "2")) == [3, 4]
    assert listed(told(capsys, run, "--show", "solved")) == [1, 0]
    assert listed(told(capsys, run, "--show", "useful")) == [5, 6]
    assert listed(told(capsys, run, "--show", "unseen")) == [8, 9]
    everything = told(capsys, run, "--show", "all")
    assert sorted(listed(everything)) == list(range(10))
    assert "hopeless: 3 prompts, most visits first" in everything
    assert prompts[3].id in everything
    assert "Where the generated tokens went" not in everything
    assert "hopeless: the first 1 of 3 prompts" in told(capsys, run, "--show", "all", "--limit", "1")
    assert "'easy' is none of solved, hopeless" in told(capsys, run, "--show", "easy", code=2)


def test_sources_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = make_prompts(10, sources=("even", "odd"))
    text = told(capsys, make_run(tmp_path / "r", prompts=prompts, history=history(prompts), rows=[step_row(3)]))
    # even: 0 solved, 2 and 4 hopeless, 6 out of band, 8 unseen; odd: 1 solved, 3 hopeless, 5 kept, 7 unjudged, 9 unseen
    assert words(text, "even ")[1:] == ["5", "20.0%", "20.0%", "40.0%", "20.0%", "43.8%"]
    assert words(text, "odd ")[1:] == ["5", "20.0%", "20.0%", "20.0%", "20.0%", "41.7%"]


def test_retired_and_skipped_prompts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = make_prompts(10)
    settings = {"algorithm": {"dynamic_sampling": {"selection": {"retire": {"at": 0.75, "review": 0.1}, "greso": {}}}}}
    known = history(prompts, greso={"p_easy": 0.25, "p_hard": 0.75})
    text = told(capsys, make_run(tmp_path / "r", prompts=prompts, history=known, settings=settings, rows=[step_row(3)]))
    assert (
        "3 of them are retired (pass rate of the last visit at least 75%); one in 10 of their turns is a review" in text
    )
    assert "GRESO: p_easy 0.25, p_hard 0.75; 5 prompts are skipped at times" in text


def test_everything_retired_is_the_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = make_prompts(2)
    known = make_history({p.id: row(1, Verdict.ALL_CORRECT, 4) for p in prompts}, 2)
    for review, said in ((0.0, True), (0.1, False)):  # reviews go on
        settings = {"algorithm": {"dynamic_sampling": {"selection": {"retire": {"at": 1.0, "review": review}}}}}
        folder = tmp_path / f"r{review}"
        text = told(capsys, make_run(folder, prompts=prompts, history=known, settings=settings, rows=[step_row(3)]))
        assert ("every prompt reached" in text) == said


def test_a_run_without_a_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "r", prompts=make_prompts(3), rows=[step_row(1)])
    text = told(capsys, run)
    assert "No checkpoint yet, and the history of the prompts is saved there: every 10 steps" in text
    assert "Where the generated tokens went" in text
    assert "No checkpoint yet" in told(capsys, run, "--show", "solved", code=2)
    (run / "metrics.jsonl").unlink()
    text = told(capsys, run)
    assert "No token was generated yet." in text
    assert "No group was judged yet." in text


def test_a_checkpoint_of_an_older_version(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"step": 1, "sampling/acceptance_rate": 0.5, "groups/finished": 2, "groups/kept": 1}]
    text = told(capsys, make_run(tmp_path / "r", state={"kept": []}, rows=rows))
    assert "The checkpoint of step 3 is of a version that kept no history of its prompts." in text
    assert "these steps were recorded by a version that kept no account" in text
    assert "2 groups judged in the last step: 50.0% kept." in text


def test_without_the_prompts_file_ids_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = make_prompts(10)
    run = make_run(tmp_path / "r", history=history(prompts), rows=[step_row(3)])
    text = told(capsys, run)
    assert "no prompts at" in text
    assert f"prompt {prompts[3].id}" in text
    assert "Without prompts.parquet they are not known by name" in told(capsys, run, "--show", "unseen")


def test_a_recipe_of_another_version_costs_only_the_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = make_prompts(10)
    run = make_run(tmp_path / "r", prompts=prompts, history=history(prompts), rows=[step_row(3)])
    (run / "recipe.resolved.yaml").write_text("model: {path: a/b, shape: round}\n")
    text = told(capsys, run)
    assert "recipe.resolved.yaml is of another version" in text
    assert words(text, "solved  ")[1] == "2"


def test_a_chosen_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = make_prompts(10)
    run = make_run(tmp_path / "r", prompts=prompts, history=history(prompts), rows=[step_row(s) for s in (1, 2, 3)])
    make_run(run, history=make_history({}, 10), step=2)
    assert "step 2 of 100  10 prompts, as of step 2" in told(capsys, run, "--step", "2")
    assert words(told(capsys, run, "--step", "2"), "generated  ")[1] == "2,000"
    assert "no checkpoint of step 7" in told(capsys, run, "--step", "7", code=2)
    assert f"is a folder of runs; give one of them: {run}." in told(capsys, tmp_path, code=2)
    assert "holds no run" in told(capsys, run / "checkpoints", code=2)


def test_a_running_run_is_read_and_never_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = make_prompts(10)
    run = make_run(tmp_path / "r", prompts=prompts, history=history(prompts), rows=[step_row(3)])
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "groups/fin')  # half a line
    writing = run / "checkpoints" / ".writing-step_000004"  # a save under way
    shutil.copytree(run / "checkpoints" / "step_000003", writing)

    def files() -> dict[str, tuple[int, int]]:
        return {str(p): (p.stat().st_mtime_ns, p.stat().st_size) for p in sorted(run.rglob("*"))}

    before = files()
    told(capsys, run)
    told(capsys, run, "--show", "all")
    assert files() == before


def test_a_checkpoint_that_is_removed_meanwhile_is_passed_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = make_prompts(10)
    run = make_run(tmp_path / "r", prompts=prompts, history=history(prompts), rows=[step_row(3)])
    from dapo.checkpoint.store import CheckpointStore

    answers = [[1], [1], [3]]
    monkeypatch.setattr(CheckpointStore, "steps", lambda self: answers.pop(0))
    assert "as of step 3" in told(capsys, run)


@pytest.mark.parametrize("name", ["state.json", "state.npz"])
def test_a_damaged_checkpoint_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    prompts = make_prompts(10)
    run = make_run(tmp_path / "r", prompts=prompts, history=history(prompts), rows=[step_row(3)])
    file = run / "checkpoints" / "step_000003" / name
    file.write_bytes(file.read_bytes()[:100])
    assert "step_000003 is damaged" in told(capsys, run, code=2)


def stopped_group(number: int, verdict: Verdict, reason: str | None = None) -> Group:
    completion = Response(np.array([1]), np.zeros(1, np.float32), np.zeros(1, np.int32), FinishReason.STOP, "no answer")
    score = Score({"accuracy": 0.0}, 0.0) if reason is None else Score(reason=reason)
    return Group(number, make_prompts(1)[0], [completion] * 4, [score] * 4, 4, verdict)


def test_a_run_that_stopped_is_explained_by_the_step_that_could_not_be_filled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "r", rows=[step_row(3)])
    groups = [stopped_group(n, Verdict.ALL_WRONG) for n in range(79)] + [stopped_group(79, Verdict.KEPT)]
    write_rollouts(run / "stopped" / "step_000004.parquet", 4, groups)
    text = told(capsys, run)
    assert "80 groups judged in the step that could not be filled: 1.2% kept, 98.8% all wrong." in text
    assert "99% of the groups are all wrong" in text
    with (run / "metrics.jsonl").open("a") as file:  # it went on: the file is history
        file.write('{"step": 4, "groups/finished": 2, "groups/kept": 2}\n')
    assert "12 groups judged in the last 2 steps" in told(capsys, run)


def test_the_end_of_the_data_and_a_failing_verifier_are_recognised(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "r", rows=[step_row(3)], settings={"data": {"epochs": 1}})
    stopped = run / "stopped" / "step_000004.parquet"
    write_rollouts(stopped, 4, [stopped_group(n, Verdict.ALL_WRONG) for n in range(3)])
    assert "data.epochs ran out" in told(capsys, run)
    write_rollouts(stopped, 4, [stopped_group(n, Verdict.ALL_WRONG) for n in range(80)])  # 20 x P: the cap
    assert "too hard" in told(capsys, run)
    write_rollouts(stopped, 4, [stopped_group(n, Verdict.TOO_FEW_SCORED, "timeout: 5 s") for n in range(3)])
    assert "12 of them because of 'timeout'" in " ".join(told(capsys, run).split())


def test_dynamic_sampling_that_is_off_has_nothing_to_fill(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = {"algorithm": {"dynamic_sampling": {"mode": "off"}}}
    assert "every group with two voters trains" in told(
        capsys, make_run(tmp_path / "r", rows=[step_row(3)], settings=settings)
    )


@pytest.mark.parametrize("width", [80, 200])
def test_data_is_untrusted_and_fits_the_width(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    text = HOSTILE + " word" * 100
    prompts = [Prompt(content_id(text), text, np.array([1]), text, HOSTILE * 9, HOSTILE * 9), *make_prompts(3)]
    known = make_history({prompts[0].id: row(3, Verdict.ALL_WRONG, 0)}, 4, ids=[prompts[0].id])
    run = make_run(tmp_path / "r", prompts=prompts, history=known, rows=[step_row(3)])
    shown = told(capsys, run) + told(capsys, run, "--show", "all")
    assert max(cell_len(line) for line in shown.splitlines()) <= width
    assert not {"\x1b", "\x9b", "\u202e", "\x07"} & set(shown)
    assert "[bold red]x[/]" in shown
    known["ids"] = [HOSTILE]
    shown = told(capsys, make_run(tmp_path / "h", history=known, rows=[step_row(3)]))
    assert not {"\x1b", "\x9b", "\u202e", "\x07"} & set(shown)


@pytest.mark.whole
def test_no_torch_is_imported(tmp_path: Path) -> None:
    prompts = make_prompts(10)
    run = make_run(tmp_path / "r", prompts=prompts, history=history(prompts), rows=[step_row(3)])
    code = f"import sys; from dapo.cli.main import main; assert main(['data', {str(run)!r}]) == 0; "
    code += "print('heavy:', [m for m in ('torch', 'transformers', 'matplotlib') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("heavy: []\n")


# ---------------------------------------------------------------------------------------------- somebody else's folder


def odd_run(tmp_path: Path) -> Path:
    prompts = make_prompts(10)
    return make_run(tmp_path / "run", prompts=prompts, history=history(prompts), rows=[step_row(1), step_row(2)])


@pytest.mark.parametrize(
    "name", ["metrics.jsonl", "prompts.parquet", "recipe.resolved.yaml", "state.json", "state.npz"]
)
def test_nobody_waits_at_a_pipe(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    run = odd_run(tmp_path)
    (path,) = run.rglob(name)
    path.unlink()
    os.mkfifo(path)
    code = main(["data", str(run)])
    said = capsys.readouterr()
    assert (code, said.err.count("error:")) in {(0, 0), (1, 1), (2, 1)}
    assert name.partition(".")[0].split("_")[0] in said.out + said.err


DEEP = "[" * 200_000


@pytest.mark.parametrize(
    "name", ["metrics.jsonl", "state.json", "manifest.json", "status.json", "recipe.resolved.yaml"]
)
def test_deep_json_is_no_traceback(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    run = odd_run(tmp_path)
    path = next(run.rglob(name), run / name)
    path.write_text(DEEP + "\n")
    assert main(["data", str(run)]) in (0, 1, 2)
    said = capsys.readouterr()
    assert "Traceback" not in said.out + said.err


def test_packed_arrays_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = odd_run(tmp_path)
    (path,) = run.rglob("state.npz")
    np.savez_compressed(path, i8=np.zeros(10_000_000, np.int64))
    assert main(["data", str(run)]) == 2
    assert "state.npz is packed" in capsys.readouterr().err


def first_step(run: Path, judged: int, cap: float | None = 80.0) -> None:
    """A run in its first step: what status.json has, and an evaluation in which nothing was right."""
    shares = Shares(all_wrong=float(judged > 0), judged=judged, truncated=0.7, answered=0.0, generated_tokens=1234)
    writer = StatusWriter(run / "status.json", steps=9, clock=itertools.count(1000.0, 2.0).__next__)
    writer.doing("", CollectProgress(1, 0, 4, judged, shares, 1234, waiting=3, cap_groups=cap))
    write_evaluation(run / "evaluations" / "step_000000.parquet", 0, evaluation([[0.0] * 4] * 60, cut=160))


def test_a_run_that_starves_in_its_first_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"step": 0, "validation/accuracy": 0.0}]
    run = make_run(tmp_path / "r", prompts=make_prompts(4), rows=rows)
    (run / "evaluations").mkdir()
    first_step(run, judged=20)
    text = " ".join(told(capsys, run).split())
    assert "20 groups judged in step 1, which is not done: 100.0% all wrong." in text
    assert "at this rate the batch never gets full, and" in text
    assert "cap.groups ends the search at 80" in text
    assert "70% of the responses are truncated" in text
    assert "data.few_shot" in text
    assert "1,234 tokens so far: their account is made when the step is done." in text
    for false in ("No group was judged yet", "kept no account", "held-out responses are right"):
        assert false not in text


def test_a_run_whose_first_step_has_judged_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "r", prompts=make_prompts(4), rows=[{"step": 0, "validation/accuracy": 0.0}])
    (run / "evaluations").mkdir()
    first_step(run, judged=0)
    text = " ".join(told(capsys, run).split())
    assert "step 1: 0 of 4 groups kept, none judged yet, 3 responses wait for their score." in text
    assert "0 of 240 held-out responses are right before training." in text


def test_a_later_step_that_does_not_starve_leaves_the_word_to_the_steps_that_are_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "r", prompts=make_prompts(4), rows=[step_row(s) for s in (1, 2)])
    shares = Shares(all_wrong=1.0, judged=3)
    writer = StatusWriter(run / "status.json", steps=9, step=2, clock=itertools.count(1000.0, 2.0).__next__)
    writer.doing("", CollectProgress(3, 0, 4, 3, shares, cap_groups=80.0))
    assert "groups judged in the last 2 steps" in told(capsys, run)
    writer.doing("", CollectProgress(3, 0, 4, 40, Shares(all_wrong=1.0, judged=40), cap_groups=80.0))
    assert "40 groups judged in step 3, which is not done" in told(capsys, run)


def test_held_out_accuracy_by_the_columns_of_the_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"step": 0, "validation/accuracy": 0.5}, step_row(1), {**step_row(2), "validation/accuracy": 0.5}]
    run = make_run(tmp_path / "r", rows=rows)
    (run / "evaluations").mkdir()
    columns = [{"operation": HOSTILE[:40] if n < 30 else "times"} for n in range(60)]
    for step, right in ((0, [[1.0, 0.0]] * 60), (2, [[1.0, 1.0]] * 30 + [[0.0, 0.0]] * 30)):
        write_evaluation(run / "evaluations" / f"step_00000{step}.parquet", step, evaluation(right, columns=columns))
    text = told(capsys, run)
    assert words(text, "operation = times") == ["operation", "=", "times", "30", "50.0%", "0.0%", "-50.0", "held_out"]
    assert "\x1b" not in text
    said = " ".join(text.split())
    assert "fell from step 0 to step 2 where operation = times, from 50.0% to 0.0% (30 problems" in said
