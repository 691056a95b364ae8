import json
import os
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dapo.config.yaml_files import parse_yaml
from dapo.errors import RecipeError
from dapo.observe.run_folder import RunFolder
from dapo.report.reader import LOG_LINES, read_run


def append(path, text):
    with path.open("ab") as file:
        file.write(text if isinstance(text, bytes) else text.encode())


def test_a_run_is_read_whole(tmp_path, make_run):
    run = read_run(make_run(tmp_path / "my run", steps=8, seed=3))
    assert (run.name, run.seed, run.last_step, run.held) == ("my run", 3, 8, False)
    assert [row["step"] for row in run.rows] == list(range(9))
    assert run.rows[4]["validation/accuracy"] == pytest.approx(0.52)
    assert run.rows[1]["train/clip_high_probability"] is None  # was not finite
    assert run.recipe.trainer.steps == 8
    assert ("trainer.steps", "100", "8") in run.difference
    assert run.status.state == "finished"
    assert len(run.samples) == 3 * 6
    assert run.spans[1].name == "score"
    assert (run.spans[1].busy, run.spans[1].count) == (0.1, 5)
    assert run.log_tail == ["2027-01-15 08:00:00,000 WARNING dapo: a warning"]
    assert run.notes == []


def test_a_light_reading_leaves_out_samples_and_spans(tmp_path, make_run):
    run = read_run(make_run(tmp_path / "run"), light=True)
    assert (len(run.rows), run.samples, run.spans) == (13, [], [])


def test_a_folder_without_a_run_is_refused_with_the_near_ones(tmp_path, make_run):
    make_run(tmp_path / "mine")
    with pytest.raises(RecipeError, match=r"holds no run.*mine"):
        read_run(tmp_path / "mina")


def test_only_a_recipe_is_enough(tmp_path, make_run):
    folder = make_run(tmp_path / "run", parts="")
    (folder / "metrics.jsonl").unlink()
    (folder / "difference.txt").unlink()
    run = read_run(folder)
    assert (run.rows, run.samples, run.spans, run.log_tail, run.status, run.notes) == ([], [], [], [], None, [])


def test_a_half_written_line_is_left_for_later(tmp_path, make_run):
    folder = make_run(tmp_path / "run", steps=2)
    append(folder / "metrics.jsonl", '{"step": 3, "train/lo')
    first = read_run(folder)
    assert (first.last_step, first.notes) == (2, [])
    append(folder / "metrics.jsonl", 'ss": 0.5}\n')
    second = read_run(folder, earlier=first)
    assert second.rows[-1] == {"step": 3, "train/loss": 0.5}
    assert first.last_step == 2  # what was read before stays as it was


def test_reading_again_parses_only_what_is_new(tmp_path, make_run, monkeypatch):
    folder = make_run(tmp_path / "run", steps=4)
    first = read_run(folder)
    parsed = []
    monkeypatch.setattr(
        "dapo.report.reader.json.loads", lambda data, real=json.loads: parsed.append(data) or real(data)
    )
    append(folder / "metrics.jsonl", '{"step": 5, "train/loss": 1}\n')
    second = read_run(folder, earlier=first)
    assert [row["step"] for row in second.rows] == list(range(6))
    assert (second.samples, second.spans) == (first.samples, first.spans)
    assert [data for data in parsed if b"loss" in data] == [b'[{"step": 5, "train/loss": 1}]']
    third = read_run(folder, earlier=second)  # nothing is new
    assert third.rows == second.rows
    assert read_run(folder, earlier=third).rows == second.rows


def test_a_file_that_was_cut_back_is_read_anew(tmp_path, make_run):
    folder = make_run(tmp_path / "run", steps=8)
    first = read_run(folder)
    RunFolder.open(folder).cut_back(4)
    append(folder / "metrics.jsonl", '{"step": 5, "train/loss": 7}\n')
    second = read_run(folder, earlier=first)
    assert [row["step"] for row in second.rows] == [0, 1, 2, 3, 4, 5]
    assert max(sample.step for sample in second.samples) == 4
    # rewritten in place, and longer than before
    text = (folder / "metrics.jsonl").read_bytes().replace(b'"train/loss": 7', b'"train/loss": 8')
    (folder / "metrics.jsonl").write_bytes(text)
    append(folder / "metrics.jsonl", '{"step": 6}\n')
    assert read_run(folder, earlier=second).rows[-2:] == [{"step": 5, "train/loss": 8}, {"step": 6}]


def test_what_is_no_metric_is_left_out_and_said(tmp_path, make_run):
    folder = make_run(tmp_path / "run", steps=2)
    append(folder / "metrics.jsonl", b'{"step": 3, "a": NaN, "b": 1e999, "c": "text", "d": true, "e": [1], "f": 2}\n')
    append(
        folder / "metrics.jsonl", b'not JSON\n[1]\n{"step": "4"}\n{"step": -1}\n\xff\xfe\n{"step": 1}, {"step": 2}\n'
    )
    append(folder / "metrics.jsonl", b'{"step": 5, "a": ' + b"9" * 5000 + b"}\n" + b"[" * 100_000 + b"\n")
    append(folder / "metrics.jsonl", b'{"step": 6, "key\\ud800": 1}\n')
    run = read_run(folder)
    assert run.rows[-2] == {"step": 3, "a": None, "b": None, "c": None, "d": None, "e": None, "f": 2}
    assert run.rows[-1] == {"step": 6, "key\ufffd": 1}
    assert run.notes == [
        "metrics.jsonl: 8 lines were not as expected, and left out. Was the file edited, the disk full?"
    ]


def test_the_difference_is_whole_and_by_leaf(tmp_path, make_run):
    folder = make_run(tmp_path / "run", steps=2)
    path = folder / "recipe.resolved.yaml"
    given, _ = parse_yaml(path.read_text(), path.name)
    pattern = "a" * 80
    given["rewards"] = [
        {"name": "accuracy", "kind": "exact", "pattern": pattern},
        {"name": "format", "kind": "regex", "pattern": "b", "weight": 4.0},
    ]
    path.write_text(json.dumps(given))
    found = [line for line in read_run(folder).difference if line[0].startswith("rewards")]
    assert found == [
        ("rewards.0.kind", '"math"', '"exact"'),
        ("rewards.0.pattern", "null", f'"{pattern}"'),
        ("rewards.1.name", "none", '"format"'),
        ("rewards.1.kind", "none", '"regex"'),
        ("rewards.1.pattern", "none", '"b"'),
        ("rewards.1.weight", "none", "4.0"),
    ]


def test_a_step_that_was_done_again_counts_once(tmp_path, make_run):
    folder = make_run(tmp_path / "run", steps=3)
    append(folder / "metrics.jsonl", '{"step": 2, "train/loss": 8}\n')
    run = read_run(folder)
    assert [row["step"] for row in run.rows] == [0, 1, 2, 3]
    assert run.rows[2] == {"step": 2, "train/loss": 8}


def test_an_evaluation_after_the_last_step_joins_its_row(tmp_path, make_run):
    folder = make_run(tmp_path / "run", steps=3)
    before = read_run(folder).rows
    late = {"step": 3, "validation/accuracy": 0.75, "time/evaluate": 2.5, "time/step": 2.5}
    append(folder / "metrics.jsonl", json.dumps(late) + "\n")
    rows = read_run(folder).rows
    assert rows[:3] == before[:3]
    assert rows[3] == before[3] | late | {key: before[3].get(key, 0) + 2.5 for key in ("time/evaluate", "time/step")}


def test_lines_left_out_stay_said_while_a_run_is_followed(tmp_path, make_run):
    folder = make_run(tmp_path / "run", steps=2)
    append(folder / "metrics.jsonl", "no JSON\n")
    first = read_run(folder)
    again = read_run(folder, earlier=first)
    append(folder / "metrics.jsonl", "none either\n")
    third = read_run(folder, earlier=again)
    assert first.notes == again.notes != []
    assert third.notes == read_run(folder).notes
    assert "2 lines" in third.notes[0]


def test_samples_and_spans_of_another_version(tmp_path, make_run):
    folder = make_run(tmp_path / "run", steps=4)
    whole = read_run(folder)
    sample = json.loads((folder / "samples.jsonl").read_text().splitlines()[0])
    append(folder / "samples.jsonl", json.dumps(sample | {"new": 1, "response": "\ud800"}) + "\n")  # one field more
    append(folder / "samples.jsonl", json.dumps({k: v for k, v in sample.items() if k != "answer"}) + "\n")
    append(folder / "samples.jsonl", json.dumps(sample | {"prompt": 5}) + "\n")
    append(folder / "spans.jsonl", '{"step": 5, "name": "learn", "start": 1, "seconds": 2}\n')
    append(folder / "spans.jsonl", '{"step": 5, "name": "learn", "start": 1, "seconds": -2}\n{"step": 5}\n')
    run = read_run(folder)
    assert len(run.samples) == len(whole.samples) + 1
    assert run.samples[-1].response == "\ufffd"
    assert len(run.spans) == len(whole.spans) + 1
    assert (run.spans[-1].busy, run.spans[-1].count) == (2.0, 1)
    assert [note.split(" were")[0] for note in run.notes] == ["samples.jsonl: 2 lines", "spans.jsonl: 2 lines"]


def test_a_recipe_of_another_version(tmp_path, make_run):
    folder = make_run(tmp_path / "run", seed=5)
    resolved = folder / "recipe.resolved.yaml"
    resolved.write_text(resolved.read_text() + "hologram:\n  depth: 3\n")
    run = read_run(folder)
    assert (run.recipe, run.seed, len(run.rows)) == (None, 5, 13)
    assert run.family
    assert ("trainer.steps", "100", "12") in run.difference  # of difference.txt
    assert "another version (hologram" in run.notes[0]
    resolved.write_text("a: [unclosed\n\x00")
    run = read_run(folder)
    assert (run.recipe, run.seed, run.family) == (None, None, "")
    assert "cannot be read" in run.notes[0]


def test_a_damaged_status_is_said(tmp_path, make_run):
    folder = make_run(tmp_path / "run")
    (folder / "status.json").write_text('{"state": "runn')
    run = read_run(folder)
    assert run.status is None
    assert "status.json cannot be read" in run.notes[0]


def test_the_end_of_a_long_log_whatever_is_in_it(tmp_path, make_run):
    folder = make_run(tmp_path / "run")
    (folder / "log.txt").write_bytes(b"".join(b"%07d \xff line\n" % n for n in range(50_000)))
    tail = read_run(folder).log_tail
    assert len(tail) == LOG_LINES
    assert tail[-1] == "0049999 \ufffd line"


def test_files_that_are_folders(tmp_path, make_run):
    folder = make_run(tmp_path / "run", parts="")
    for name in ("metrics.jsonl", "samples.jsonl", "log.txt"):
        (folder / name).unlink(missing_ok=True)
        (folder / name).mkdir()
    run = read_run(folder)
    assert run.rows == []
    assert len(run.notes) == 3


def test_a_hostile_name(tmp_path, make_run):
    name = os.fsdecode(b"<b>\xff\n")
    assert read_run(make_run(tmp_path / "run").rename(tmp_path / name)).name == "<b>\ufffd\n"


HOLD = """
import sys
from dapo.observe.run_folder import RunFolder
RunFolder(__import__("pathlib").Path(sys.argv[1])).lock()
print("held", flush=True)
sys.stdin.read()
"""


def test_a_run_that_goes_on_is_seen_and_keeps_its_lock(tmp_path, make_run):
    folder = make_run(tmp_path / "run", how="running")
    assert not read_run(folder).held  # says that it runs, and nobody holds it: it was killed
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout.readline() == "held\n"
        assert read_run(folder).held
        with pytest.raises(RecipeError, match="another process"):  # and still has it
            RunFolder.open(folder).lock()
        holder.stdin.close()
    assert not read_run(folder).held


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=300))
def test_no_bytes_stop_the_reader(tmp_path, make_run, data):
    folder = tmp_path / "run"
    if not folder.exists():
        make_run(folder, steps=2)
    for name in ("metrics.jsonl", "samples.jsonl", "spans.jsonl", "status.json", "log.txt"):
        (folder / name).write_bytes(data)
    run = read_run(folder)
    json.dumps([run.rows, run.log_tail, run.notes], allow_nan=False).encode()
