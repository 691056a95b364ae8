import errno
import fcntl
import itertools
import json
import os
import subprocess
import sys
from fnmatch import fnmatch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from between import between_its_calls

from dapo.errors import DataError, RecipeError
from dapo.observe.metrics import MetricWriter, read_metrics
from dapo.observe.run_folder import RunFolder, step_files

HOLD = """
import sys
from dapo.observe.run_folder import RunFolder
run = RunFolder.create(sys.argv[1], "r")
print("held", flush=True)
if len(sys.argv) > 2:
    import os
    if os.fork() == 0:  # a worker that outlives its parent
        print(os.getpid(), flush=True)
        sys.stdin.read()
        os._exit(0)
sys.stdin.read()
"""


def hold(tmp_path, *more):
    command = [sys.executable, "-c", HOLD, str(tmp_path), *more]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    return process


def test_paths(tmp_path):
    run = RunFolder.create(tmp_path, "r")
    root = tmp_path / "r"
    assert run.path == root
    assert run.metrics == root / "metrics.jsonl"
    assert run.resolved_recipe == root / "recipe.resolved.yaml"
    assert run.rollout_file(12) == root / "rollouts" / "step_000012.parquet"
    assert run.checkpoint(3) == root / "checkpoints" / "step_000003"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/tmp/x"])
def test_a_name_that_leaves_the_folder_is_refused(tmp_path, name):
    with pytest.raises(RecipeError, match=r"run\.name"):
        RunFolder.create(tmp_path, name)


def test_an_existing_run_is_refused_with_the_ways_out(tmp_path):
    run = RunFolder.create(tmp_path, "r")
    run.write(run.resolved_recipe, "preset: dapo\n")
    run.release()
    with pytest.raises(RecipeError, match=r"--resume .*backup"):
        RunFolder.create(tmp_path, "r")


@pytest.mark.parametrize(
    "there", [[], ["lock"], ["lock", "recipe.yaml"], ["lock", "difference.txt", ".recipe.yaml.tmp"]]
)
def test_a_run_that_ended_before_its_recipe_was_written_is_as_good_as_none(tmp_path, there):
    (tmp_path / "r").mkdir()
    for name in there:
        (tmp_path / "r" / name).write_text("half")
    if there:
        with pytest.raises(RecipeError, match=r"before its recipe was written. Start it again"):
            RunFolder.open(tmp_path / "r")
    run = RunFolder.create(tmp_path, "r")
    assert run.path == tmp_path / "r"
    assert [p.name for p in tmp_path.iterdir()] == ["r"]


@pytest.mark.parametrize(
    ("resolved", "command"),
    [
        ("run: {stage: sft}", "sft"),
        ("run: {stage: train}", "train"),
        ("run: [", "train"),
        ("- a", "train"),
        ("", "train"),
    ],
)
def test_a_run_that_is_there_is_gone_on_with_by_its_own_command(tmp_path, resolved, command):
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "recipe.resolved.yaml").write_text(resolved)
    with pytest.raises(RecipeError, match=rf"Continue it with `dapo {command} --resume {tmp_path}/r`"):
        RunFolder.create(tmp_path, "r")


@pytest.mark.parametrize("there", ["recipe.resolved.yaml", "notes.txt", "metrics.jsonl", "checkpoints"])
def test_anything_else_in_a_folder_is_somebodys(tmp_path, there):
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / there).touch()
    with pytest.raises(RecipeError, match="exists already"):
        RunFolder.create(tmp_path, "r")


def test_a_new_run_is_its_owners_alone_and_a_folder_made_before_keeps_its_rights(tmp_path):
    assert RunFolder.create(tmp_path / "runs", "r").path.stat().st_mode & 0o777 == 0o700
    (tmp_path / "shared").mkdir(mode=0o775)
    (tmp_path / "shared").chmod(0o775)
    assert RunFolder.create(tmp_path, "shared").path.stat().st_mode & 0o777 == 0o775


@pytest.mark.parametrize(
    ("directory", "name"), [("file", "r"), ("file/below", "r"), (".", "x" * 300), ("a\0b", "r"), ("x" * 300, "r")]
)
def test_where_no_folder_can_be_made_it_is_said(tmp_path, directory, name):
    (tmp_path / "file").write_text("x")
    with pytest.raises(RecipeError, match=r"run\.(dir|name)"):
        RunFolder.create(tmp_path / directory, name)


def test_an_empty_folder_is_taken(tmp_path):
    (tmp_path / "r").mkdir()
    assert RunFolder.create(tmp_path, "r").path.is_dir()


def test_backup_moves_aside_to_the_next_free_name(tmp_path):
    for _ in range(3):
        run = RunFolder.create(tmp_path, "r", if_exists="backup")
        run.write(run.difference, str(len(list(tmp_path.iterdir()))))
        run.write(run.resolved_recipe, "preset: dapo\n")
        run.release()
    (tmp_path / "r.x").mkdir()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["r", "r.1", "r.2", "r.x"]
    assert [(tmp_path / n / "difference.txt").read_text() for n in ("r.1", "r.2", "r")] == ["1", "2", "3"]


def test_open_finds_the_run_that_a_bare_name_means(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RecipeError, match=r" is missing\. No run next to it or in runs\.$"):
        RunFolder.open("mine")
    mine = RunFolder.create("runs", "mine")
    mine.write(mine.resolved_recipe, "x")
    with pytest.raises(RecipeError, match=r"^other holds no run: .* Runs in runs: mine\.$"):
        RunFolder.open("other")
    with pytest.raises(RecipeError, match=r"^mine holds no run; did you mean runs/mine\?$"):
        RunFolder.open("mine")


def test_open_names_the_runs_nearby(tmp_path):
    other = RunFolder.create(tmp_path, "other")
    other.write(other.resolved_recipe, "x")
    with pytest.raises(RecipeError, match=rf"{tmp_path} is a folder of runs; give one of them: {other.path}\.$"):
        RunFolder.open(tmp_path)
    with pytest.raises(RecipeError, match=r"holds no run.*other"):
        RunFolder.open(tmp_path / "othr")
    assert RunFolder.open(other.path).path == other.path


def test_a_second_process_is_kept_out_until_the_first_dies(tmp_path):
    holder = hold(tmp_path)
    run = RunFolder(tmp_path / "r")
    with pytest.raises(RecipeError, match=f"pid {holder.pid}"):
        run.lock()
    with pytest.raises(RecipeError, match="written by another process"):
        RunFolder.create(tmp_path, "r", if_exists="backup")  # a running run is not moved away
    holder.kill()
    holder.wait()
    run.lock()
    run.release()


def test_a_second_writer_of_the_same_process_is_refused(tmp_path):
    run = RunFolder.create(tmp_path, "r")
    (tmp_path / "link").symlink_to(run.path)
    for path in (run.path, tmp_path / "link"):
        with pytest.raises(RecipeError, match=rf"written by this process \(pid {os.getpid()}\) already.*close"):
            RunFolder(path).lock()
    run.release()
    again = RunFolder(run.path)
    again.lock()
    again.release()


def test_closing_other_descriptors_of_the_lock_file_leaves_the_lock_in_place(tmp_path):
    run = RunFolder.create(tmp_path, "r")
    (run.path / "lock").read_bytes()
    with pytest.raises(RecipeError):
        RunFolder(run.path).lock()
    done = subprocess.run([sys.executable, "-c", HOLD, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"is being written by another process (pid {os.getpid()} on " in done.stderr
    run.release()


def test_a_fork_that_releases_its_copy_of_a_run_leaves_the_lock_in_place(tmp_path):
    run = RunFolder.create(tmp_path, "r")
    child = os.fork()
    if child == 0:
        run.release()
        os._exit(0)
    os.waitpid(child, 0)
    done = subprocess.run([sys.executable, "-c", HOLD, str(tmp_path)], capture_output=True, text=True, check=False)
    assert "is being written by another process" in done.stderr
    run.release()


def test_without_file_locks_this_process_is_kept_out_and_a_warning_says_who_is_not(tmp_path, monkeypatch, caplog):
    def no_locks(descriptor, how):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    run = RunFolder.create(tmp_path, "r")
    assert "a file system without file locks (No locks available)" in caplog.text
    with pytest.raises(RecipeError, match="written by this process"):
        RunFolder(run.path).lock()
    run.release()
    RunFolder.create(tmp_path, "r").release()


@pytest.mark.parametrize("if_exists", ["refuse", "backup"])
@pytest.mark.parametrize("there", ["nothing", "a run"])
@pytest.mark.parametrize("ends", [False, True], ids=["the other goes on", "the other ends"])
def test_whenever_another_process_begins_a_run_of_that_name_each_has_its_folder(
    tmp_path, monkeypatch, if_exists, there, ends
):
    """No run is written over, moved away while it goes on, or lost."""
    numbers = itertools.count()

    def begins(runs, said):
        try:
            run = RunFolder.create(runs, "r", if_exists)
        except RecipeError as refused:
            return str(refused)
        run.write(run.resolved_recipe, said)
        return run

    def before():
        runs = tmp_path / str(next(numbers))
        if there == "a run":
            begins(runs, "earlier").release()
        return (runs,)

    def first(runs):
        return begins(runs, "first")

    def second(runs):
        run = begins(runs, "second")
        if ends and isinstance(run, RunFolder):
            run.release()
        return run

    counts = set()
    for runs, *found in between_its_calls(monkeypatch, before, first, second):
        begun = [said for said, run in zip(("first", "second"), found, strict=True) if isinstance(run, RunFolder)]
        refused = [said for said in found if isinstance(said, str)]
        assert all("exists already" in said or "written by this process" in said for said in refused), refused
        earlier = ["earlier"] * (there == "a run")
        assert sorted(p.read_text() for p in runs.glob("*/*.yaml")) == sorted(earlier + begun)
        counts.add(len(begun))
        for run in found:
            if isinstance(run, RunFolder):
                if run._lock is not None:
                    assert run.resolved_recipe.read_text() == ("first" if run is found[0] else "second")
                run.release()
    if there == "a run" and if_exists == "refuse":
        assert counts == {0}
    else:
        assert counts == ({1, 2} if ends and if_exists == "backup" else {1})


def test_a_lock_that_leads_nowhere_is_said(tmp_path):
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "lock").symlink_to(tmp_path / "gone" / "lock")
    with pytest.raises(RecipeError, match="lock is a link"):
        RunFolder.create(tmp_path, "r")


def test_a_worker_that_outlives_a_killed_run_does_not_hold_its_folder(tmp_path):
    holder = hold(tmp_path, "fork")
    worker = int(holder.stdout.readline())
    holder.kill()
    holder.wait()
    try:
        RunFolder(tmp_path / "r").lock()
    finally:
        os.kill(worker, 9)


def test_a_damaged_span_does_not_keep_a_run_from_going_on_and_a_damaged_metric_does(tmp_path, caplog):
    run = RunFolder.create(tmp_path, "r")
    run.spans.write_text('{"step": 1}\n{"step": 1, "na\n{"name": "no step"}\n[]\n{"step": 2}\n{"step": 3}\n')
    run.metrics.write_text('{"step": 1}\n')
    with caplog.at_level("WARNING"):
        run.cut_back(2)
    assert [json.loads(line)["step"] for line in run.spans.read_text().splitlines()] == [1, 2]
    assert "3 damaged lines are taken out" in caplog.text
    run.metrics.write_text('{"step": 1}\n{"st\n{"step": 2}\n')
    with pytest.raises(DataError, match="line 2 is not JSON"):
        run.cut_back(2)


def test_cut_back_removes_everything_later(tmp_path):
    run = RunFolder.create(tmp_path, "r")
    with MetricWriter(run.metrics) as writer:
        for step in range(5):
            writer.write(step, {"train/loss": 1.0})
    run.write(run.samples, '{"step": 2}\n{"step": 4}\n{"half')
    run.rollouts.mkdir()
    for step in (1, 2, 3):
        run.rollout_file(step).write_text("x")
    (run.rollouts / ".step_000004.parquet.tmp").write_text("x")
    (run.rollouts / "step_x.parquet").write_text("not ours")
    run.stopped.mkdir()
    for step in (2, 3, 4):
        run.stopped_file(step).write_text("x")
    run.cut_back(2)
    assert list(step_files(run.stopped)) == [
        2,
        3,
    ]  # why step 3 could not be filled, which a resume is about to do again
    assert [row["step"] for row in read_metrics(run.metrics)] == [0, 1, 2]
    assert run.samples.read_text() == '{"step": 2}\n'
    assert sorted(p.name for p in run.rollouts.iterdir()) == [
        "step_000001.parquet",
        "step_000002.parquet",
        "step_x.parquet",
    ]


def test_groups_of_a_step_that_was_given_up_are_not_among_the_rollouts(tmp_path):
    """Whoever reads rollouts/*.parquet after the resume sees each group once."""
    run = RunFolder.create(tmp_path, "r")
    assert run.stopped_file(4).parent != run.rollouts
    assert not fnmatch(str(run.stopped_file(4)), str(run.rollouts / "*"))
    run.stopped.mkdir()
    run.stopped_file(4).touch()
    (run.stopped / "step_x.parquet").touch()
    assert step_files(run.stopped) == {4: run.stopped_file(4)}


def test_a_damaged_metrics_file_is_refused_before_anything_is_removed(tmp_path):
    run = RunFolder.create(tmp_path, "r")
    run.rollouts.mkdir()
    run.rollout_file(3).write_text("x")
    run.samples.write_text('{"step": 3}\n')
    for line in ('{"loss": 1}', '{"step": true}', '{"step": "2"}', "[1]", "[" * 100_000):
        run.metrics.write_text(f'{{"step": 1}}\n{{"step": 3}}\n{line}\n')
        with pytest.raises(DataError, match=r"metrics\.jsonl"):
            run.cut_back(2)
        assert run.rollout_file(3).exists()
        assert run.samples.read_text() == '{"step": 3}\n'
        assert '{"step": 3}' in run.metrics.read_text()


# ---------------------------------------------------------------- checkpoints on another disk


def test_a_run_that_came_to_nothing_leaves_what_its_processes_printed_and_is_in_no_way(tmp_path):
    for printed in ("", "no CUDA driver"):
        run = RunFolder.create(tmp_path, "a")
        (run.path / "hosts").mkdir(exist_ok=True)
        (run.path / "rollouts").mkdir()
        (run.path / "hosts" / "engine-0.txt").write_text(printed)
        (run.path / "hosts" / "engine-1.txt").touch()
        run.write(run.resolved_recipe, "run: {}\n")
        run.drop()
        run.release()
        assert run.path.exists() == bool(printed)
    assert sorted(p.name for p in run.path.iterdir()) == ["hosts", "lock"]
    assert (run.path / "hosts" / "engine-0.txt").read_text() == "no CUDA driver"
    RunFolder.create(tmp_path, "a").release()


def test_checkpoints_lie_elsewhere_each_run_in_a_folder_of_its_own(tmp_path):
    first = RunFolder.create(tmp_path / "runs", "a")
    first.place_checkpoints(str(tmp_path / "disk"))
    assert first.checkpoints.resolve() == (tmp_path / "disk" / "a").resolve()
    (first.checkpoints / "step_000001").mkdir()
    first.place_checkpoints(str(tmp_path / "disk"))  # they are there already
    first.check_kinds()
    second = RunFolder.create(tmp_path / "more", "a")
    second.place_checkpoints(str(tmp_path / "disk"))
    assert second.checkpoints.resolve() == (tmp_path / "disk" / "a.1").resolve()
    assert sorted(p.name for p in first.checkpoints.iterdir()) == ["step_000001"]
    second.drop_checkpoints()
    assert not (tmp_path / "disk" / "a.1").exists()
    assert not second.checkpoints.is_symlink()
    first.drop_checkpoints()  # what is not empty stays
    assert (tmp_path / "disk" / "a" / "step_000001").is_dir()
    third = RunFolder.create(tmp_path / "more", "b")
    third.place_checkpoints(None)
    assert not third.checkpoints.exists()


def test_a_place_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    run = RunFolder.create(tmp_path / "runs", "a")
    with pytest.raises(RecipeError, match=r"checkpoint.dir = .*file: no folder can be made there"):
        run.place_checkpoints(str(tmp_path / "file"))


def test_a_run_that_ended_before_its_recipe_was_written_leaves_its_link_to_the_next(tmp_path):
    run = RunFolder.create(tmp_path / "runs", "a")
    run.place_checkpoints(str(tmp_path / "disk"))
    run.release()
    again = RunFolder.create(tmp_path / "runs", "a")
    again.place_checkpoints(str(tmp_path / "disk"))
    assert again.checkpoints.resolve() == (tmp_path / "disk" / "a").resolve()


def test_engines_files_that_are_lost_cut_or_empty_are_found(tmp_path):
    folder = RunFolder(tmp_path)
    folder.rollouts.mkdir()
    for step in range(2, 9):  # the first step was not asked for
        pq.write_table(pa.table({"a": [step] * 100}), folder.rollout_file(step))
    assert folder.damaged_rollouts(8, every=True) == ([], [])
    folder.rollout_file(4).unlink()
    folder.rollout_file(5).write_bytes(b"")
    whole = folder.rollout_file(6).read_bytes()
    folder.rollout_file(6).write_bytes(whole[: len(whole) // 2])
    folder.rollout_file(7).write_bytes(b"PAR1")
    folder.rollout_file(8).unlink()
    assert folder.damaged_rollouts(8, every=True) == ([4, 8], [5, 6, 7])
    assert folder.damaged_rollouts(8, every=False) == ([], [5, 6, 7])
    assert folder.damaged_rollouts(5, every=True) == ([4], [5])
