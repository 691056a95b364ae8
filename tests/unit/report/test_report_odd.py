"""Runs that no writer of ours left: out of an archive, edited, or made to break a reader. The others stay visible."""

import json
import os
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import warm
from quick import quick
from serving import serving

from dapo.cli.main import main
from dapo.errors import DataError
from dapo.observe.run_lock import is_held
from dapo.observe.status import read_status
from dapo.report import browse, page_files
from dapo.report.bundle import bundle_of
from dapo.report.page_files import write_report
from dapo.report.reader import read_run
from dapo.report.recent import Recent
from dapo.report.runs_list import RunsFolder, fingerprint
from dapo.report.shelf import Shelf
from dapo.report.trace import trace_of

ODD_KEYS = "run: {seed: 1, 1: 2, a: 3}\n"


def with_metrics(folder, *rows):
    with (folder / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    return folder


def with_recipe(folder, text):
    (folder / "recipe.resolved.yaml").write_text(text)
    return folder


# ---------------------------------------------------------------------------------------------------- the list


@pytest.mark.parametrize("recipe", [ODD_KEYS, "run: {seed: 1}\n? [1, 2]\n: x\n", f"run: {{seed: 0x{'f' * 9000}}}\n"])
def test_a_recipe_with_odd_keys_and_numbers_is_read(tmp_path, make_run, recipe):
    run = read_run(with_recipe(make_run(tmp_path / "run", steps=3), recipe))
    assert run.recipe is None
    assert run.notes[0].startswith("recipe.resolved.yaml ")
    json.dumps(bundle_of([run], live=False), allow_nan=False)


def test_a_run_that_no_line_can_be_made_of_leaves_the_others_in_the_list(tmp_path, make_run, monkeypatch):
    for name in ("good", "odd"):
        make_run(tmp_path / name, steps=3)
    real, asked = Shelf._make_line, []

    def broken(shelf, name, slot):
        asked.append(name)
        return real(shelf, name, slot) if name == "good" else 1 // 0

    monkeypatch.setattr(Shelf, "_make_line", broken)
    shelf = Shelf(RunsFolder.at(tmp_path))
    for _ in range(2):
        lines, waiting = shelf.lines()
        assert {line.name: line.title for line in lines} == {"good": "finished", "odd": "cannot be read"}
        assert waiting == 0
    assert asked.count("odd") == 1  # not tried again while it stays as it is


def test_odd_runs_do_not_take_the_list_down(tmp_path, make_run):
    make_run(tmp_path / "good", steps=3)
    with_recipe(make_run(tmp_path / "keys", steps=3), ODD_KEYS)
    huge = {"reward/accuracy": 1e308, "time/step": 1e308, "sampling/generated_tokens": 1e308, "train/entropy": -1e308}
    with_metrics(make_run(tmp_path / "huge", steps=3), *({"step": step, **huge} for step in range(4, 30)))
    with serving(tmp_path) as served:
        reply = served.ask("/api/runs")
        assert reply.status == 200
        assert {run["name"] for run in reply.json["runs"]} == {"good", "keys", "huge"}


# ---------------------------------------------------------------------------------------------------- pipes

PIPES = ["metrics.jsonl", "status.json", "samples.jsonl", "spans.jsonl", "recipe.resolved.yaml", "difference.txt"]
PIPES += ["log.txt", "lock", "prompts.parquet", "rollouts/step_000002.parquet", "tokens/step_000002.parquet"]


def ask(folder, what):
    """Look at a run in every way; ``report`` makes its page too, ``refused`` expects that nothing does."""
    shelf = Shelf(RunsFolder.at(folder.parent))
    if what == "refused":
        assert main(["report", str(folder)]) == main(["data", str(folder)]) == 2
        print("lines", len(shelf.lines()[0]), flush=True)
        return 0
    run = read_run(folder)
    for step in browse.steps_of(run):
        found, _ = browse.groups(run, step)
        browse.group(run, step, found[0]["group"])
    browse.prompts(run, text="1 + 1")
    lines, _ = shelf.lines()
    if what == "report":
        assert main(["report", str(folder)]) == 0
    print("lines", len(lines), flush=True)
    return 0


@pytest.mark.parametrize("name", quick(PIPES, [PIPES[0], PIPES[9]]))
def test_nobody_waits_at_a_named_pipe(tmp_path, make_run, name):
    folder = make_run(tmp_path / "run", steps=3)
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    if name == "difference.txt":
        with_recipe(folder, ODD_KEYS)  # else it is not read
    what = "report" if name in ("metrics.jsonl", "rollouts/step_000002.parquet") else "look"
    if name == "recipe.resolved.yaml":
        what = "refused"
    said = tmp_path / "said"
    assert warm.run(ask, folder, what, output=said) == 0, said.read_text()  # a process that can be killed
    done = said.read_text()
    assert (f"{name} is no regular file" in done) == (what == "refused")
    assert f"lines {int(name != 'recipe.resolved.yaml')}" in done  # without a recipe it is no run


def test_a_pipe_is_told(tmp_path, make_run):
    folder = make_run(tmp_path / "run", steps=3)
    (folder / "log.txt").unlink()
    os.mkfifo(folder / "log.txt")
    assert read_run(folder).notes == ["log.txt cannot be read: it is no regular file."]
    (folder / "lock").mkdir()
    assert not is_held(folder)


def test_a_status_and_a_recipe_have_a_largest_size(tmp_path, make_run):
    folder = make_run(tmp_path / "run", steps=3)
    assert read_status(folder / "status.json")
    (folder / "status.json").write_text((folder / "status.json").read_text() + " " * 200_000)
    with_recipe(folder, (folder / "recipe.resolved.yaml").read_text() + "#" * 1_000_001)
    run = read_run(folder)
    assert (run.status, run.recipe) == (None, None)
    assert run.notes[0] == "recipe.resolved.yaml cannot be read: it has more than 1,000,000 bytes."
    assert fingerprint(folder)


def test_a_status_of_impossible_counts_is_none(tmp_path, make_run):
    folder = make_run(tmp_path / "run", steps=3, how="running")
    record = json.loads((folder / "status.json").read_text())
    (folder / "status.json").write_text(json.dumps(record | {"steps": 10**400}))
    run = read_run(folder)
    assert run.status is None
    json.dumps(bundle_of([run], live=False), allow_nan=False)


# ---------------------------------------------------------------------------------------------------- numbers


@pytest.mark.parametrize("metrics", [{"time/generate": 1e308}, {"time/step": 1e308}, {"time/step": 1e100}])
@pytest.mark.parametrize("parts", ["status", "status spans"])
def test_great_numbers_are_none_and_the_report_is_made(tmp_path, make_run, metrics, parts):
    folder = make_run(tmp_path / "run", steps=6, metrics=lambda _: metrics, parts=parts)
    assert main(["report", str(folder)]) == 0
    key, value = next(iter(metrics.items()))
    assert read_run(folder).rows[1][key] == (value if value == 1e100 else None)


@pytest.mark.parametrize("odd", [{"seconds": 1e306}, {"start": -1e308}, {"start": 1e308}, {"start": 1e11}])
def test_a_span_of_no_time_is_left_out(tmp_path, make_run, odd):
    folder = make_run(tmp_path / "run", steps=3)
    span = {"step": 2, "name": "learn", "start": 1.8e9, "seconds": 1.0, "busy": 1.0, "count": 1} | odd
    with (folder / "spans.jsonl").open("a") as file:
        file.write(json.dumps(span) + "\n")
    run = read_run(folder)
    assert len(run.spans) == 12
    assert run.notes == ["spans.jsonl: 1 line was not as expected, and left out. Was the file edited, the disk full?"]
    json.dumps([trace_of([("run", run)]), bundle_of([run], live=False)], allow_nan=False)


@pytest.mark.parametrize("budget", ["nan", "inf", "-inf"])
def test_a_budget_is_a_number(tmp_path, make_run, capsys, budget):
    assert main(["report", str(make_run(tmp_path / "run", steps=3)), f"--budget-mb={budget}"]) == 2
    assert "--budget-mb" in capsys.readouterr().err


# ---------------------------------------------------------------------------------------------------- links


@pytest.mark.parametrize("name", ["log.txt", "metrics.jsonl", "samples.jsonl", "recipe.resolved.yaml", "status.json"])
def test_a_link_out_of_the_run_is_left_out_and_said(tmp_path, make_run, name):
    secret = tmp_path / "elsewhere"
    folder = make_run(tmp_path / "run", steps=3, how="crashed")
    (folder / name).rename(secret)
    (folder / name).symlink_to(secret)
    run = read_run(folder)
    left = {
        "log.txt": run.log_tail,
        "metrics.jsonl": run.rows,
        "samples.jsonl": run.samples,
        "recipe.resolved.yaml": run.resolved,
        "status.json": run.status,
    }
    assert not left[name]
    assert any(note.startswith(f"{name} cannot be read") for note in run.notes)
    assert read_run(folder, root=tmp_path).notes == []  # the server's: below its folder a link is fine


def test_rollouts_tokens_and_prompts_of_elsewhere_are_not_shown(tmp_path, make_run):
    folder = make_run(tmp_path / "run", steps=3)
    for name in ("rollouts", "tokens", "prompts.parquet"):
        (folder / name).rename(tmp_path / name)
        (folder / name).symlink_to(tmp_path / name)
    run = read_run(folder)
    assert browse.index_of(run).groups == 0
    with pytest.raises(DataError, match="leads out"):
        browse.group(run, 1, 1000)
    folder = make_run(tmp_path / "other", steps=3)
    (folder / "prompts.parquet").unlink()
    shutil.rmtree(folder / "tokens")
    for name in ("tokens", "prompts.parquet"):
        (folder / name).symlink_to(tmp_path / name)
    run = read_run(folder)
    found, _ = browse.groups(run, 1)
    assert found
    assert not any(group["has_tokens"] for group in found)
    assert not any(r["tokens"] for r in browse.group(run, 1, found[0]["group"])["responses"])
    assert browse.prompts(run)[0][0]["source"] == "sums"  # of the rollouts


def test_nothing_is_written_through_a_link_in_the_run(tmp_path, make_run, capsys):
    folder = make_run(tmp_path / "run", steps=3)
    target = tmp_path / "target"
    target.mkdir()
    (folder / "report").symlink_to(target)
    assert main(["report", str(folder)]) == 2
    assert "--out" in capsys.readouterr().err
    assert list(target.iterdir()) == []
    assert main(["report", str(folder), "--out", str(folder / "report")]) == 0  # said by a person


# ---------------------------------------------------------------------------------------------------- leftovers


def test_a_write_that_fails_leaves_nothing(tmp_path):
    (tmp_path / "report.html").mkdir()  # cannot be replaced
    with pytest.raises(OSError):
        page_files._replace(tmp_path / "report.html", "text")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_what_a_server_remembers_has_a_bound(tmp_path, make_run, monkeypatch):
    monkeypatch.setattr(browse, "_found_texts", Recent(2))
    for n in range(5):
        folder = make_run(tmp_path / f"run {n}", steps=1, parts="rollouts")
        assert browse.prompts(read_run(folder))[0][0]["prompt"]
    assert len(browse._found_texts) == 2


# ---------------------------------------------------------------------------------------------------- bombs


def test_rollouts_that_unpack_to_gigabytes_are_left_out_and_told(tmp_path, make_run, monkeypatch):
    folder = make_run(tmp_path / "run", steps=3)
    path = folder / "rollouts" / "step_000002.parquet"
    table = pq.read_table(path)
    long = pa.array(["x" * 2**18] * len(table))
    pq.write_table(table.set_column(table.column_names.index("response"), "response", long), path)
    monkeypatch.setattr("dapo.observe.parquet.FREE", 2**20)
    written = write_report([read_run(folder)], tmp_path / "out")
    (view,) = written.bundle["runs"]
    assert [note for note in view["notes"] if "step_000002.parquet cannot be read: its" in note]
    assert view["rollouts"]["steps"] == [1, 3]


def test_a_response_of_millions_of_characters_shows_its_beginning(tmp_path, make_run, monkeypatch):
    monkeypatch.setattr("dapo.report.rollout_views.LONGEST", 100)
    folder = make_run(tmp_path / "run", steps=1, text=lambda step, n, sample: "y" * (99 + n))
    run = read_run(folder)
    texts = [browse.group(run, 1, 1000 + n)["responses"][0]["text"] for n in range(4)]
    cut = [f"{'y' * 100} … ({n} characters are left out)" for n in (1, 2)]
    assert texts == ["y" * 99, "y" * 100, *cut]


def test_a_file_that_says_it_has_terabytes_is_read_to_a_bound(tmp_path, make_run, monkeypatch):
    folder = make_run(tmp_path / "run", steps=3)
    monkeypatch.setattr("dapo.observe.jsonl.MOST_BYTES", (folder / "metrics.jsonl").stat().st_size)
    with (folder / "metrics.jsonl").open("ab") as file:
        file.truncate(2**42)  # a hole: no block of the disk
    run = read_run(folder)
    assert [row["step"] for row in run.rows] == [0, 1, 2, 3]
