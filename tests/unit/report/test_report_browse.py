import os
import shutil
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from made_folders import HOSTILE, make_group, make_prompt

from dapo.errors import DataError
from dapo.models.tiny import make_word_tokenizer
from dapo.observe.rollouts import write_rollouts
from dapo.observe.tokens import Pieces, write_tokens
from dapo.report import browse
from dapo.report.reader import read_run
from dapo.report.rollout_index import files_of, index_of
from dapo.report.rollout_views import why
from dapo.types.batch import Turn, content_id
from dapo.types.enums import Disposition, Verdict


@pytest.fixture
def run(tmp_path, make_run):
    return read_run(make_run(tmp_path / "run", steps=5))


def numbers(found):
    views, total = found
    return [view["group"] for view in views], total


def test_the_groups_of_a_step_in_order(run):
    views, total = browse.groups(run, 2)
    assert ([view["group"] for view in views], total) == ([2000, 2001, 2002, 2003, 2004, 2005], 6)
    first, second, unscored = views[0], views[1], views[4]
    assert (first["step"], first["born"], first["size"], first["correct"], first["scored"]) == (2, 1, 4, 2, 4)
    assert first["length_mean"] == 2.5  # 1, 2, 3, 4 tokens
    assert (first["truncated"], second["truncated"]) == (0, 1)
    assert first["prompt"] == "4 + 4 ="  # step 2 of 6 groups: prompt 12 mod 8
    assert (first["prompt_id"], first["answer"], first["source"]) == (content_id("4 + 4 ="), "8", "sums")
    assert (unscored["scored"], unscored["correct"], unscored["verdict"]) == (0, 0, "too_few_scored")
    assert [view["has_tokens"] for view in views] == [True, True, False, False, False, False]
    assert all(view["responses"] == [] for view in views)


def test_the_problem_is_shown_and_the_template_is_at_hand(tmp_path, make_run):
    run = read_run(make_run(tmp_path / "run", steps=2, template="<|im_start|>user\n{}<|im_end|>"))
    (first, *_), _ = browse.groups(run, 2)
    assert (first["problem"], first["prompt"]) == ("4 + 4 =", "<|im_start|>user\n4 + 4 =<|im_end|>")
    assert browse.group(run, 2, 2000)["problem"] == "4 + 4 ="
    run.folder.prompts.unlink()  # nothing but the prompt is known
    (first, *_), _ = browse.groups(run, 2)
    assert first["problem"] == first["prompt"] == "<|im_start|>user\n4 + 4 =<|im_end|>"


def test_pages_and_filters(run):
    assert numbers(browse.groups(run, 2, limit=2, offset=3)) == ([2003, 2004], 6)
    assert numbers(browse.groups(run, 2, limit=0)) == ([], 6)
    assert numbers(browse.groups(run, 2, offset=99)) == ([], 6)
    assert numbers(browse.groups(run, 2, verdict="all_wrong")) == ([2003, 2005], 2)
    assert numbers(browse.groups(run, 2, verdict="all_wrong", disposition="filled")) == ([2005], 1)
    assert numbers(browse.groups(run, 2, has_tokens=True)) == ([2000, 2001], 2)
    assert numbers(browse.groups(run, 2, source="others")) == ([], 0)
    assert numbers(browse.groups(run, None, disposition="carried", limit=3)) == ([1001, 2001, 3001], 5)
    assert numbers(browse.groups(run, None, prompt_id=content_id("4 + 4 ="))) == ([2000, 3002, 4004], 3)


def test_search_is_in_prompts_answers_and_responses_whatever_the_capitals(tmp_path, make_run):
    def text(step, n, sample):
        return "ÄPFEL (.*) 100%" if (step, n, sample) == (2, 3, 1) else f"said {n}"

    run = read_run(make_run(tmp_path / "run", steps=3, text=text))
    assert numbers(browse.groups(run, 2, text="äpfel")) == ([2003], 1)
    assert numbers(browse.groups(run, 2, text="(.*) 100%")) == ([2003], 1)  # text, not a pattern
    assert numbers(browse.groups(run, 2, text=".*")) == ([2003], 1)
    assert numbers(browse.groups(run, 2, text="5 + 5")) == ([2001], 1)  # the prompt of group 2001
    assert numbers(browse.groups(run, 2, text="SAID 4")) == ([2004], 1)
    assert numbers(browse.groups(run, None, text="äpfel")) == ([2003], 1)
    assert numbers(browse.groups(run, 2, text="\ud800\x00")) == ([], 0)
    assert numbers(browse.groups(run, 1, text="äpfel")) == ([], 0)


def test_a_group_side_by_side(run):
    view = browse.group(run, 3, 3000)
    right, wrong = view["responses"][:2]
    assert (right["text"], wrong["text"]) == ("= 4", "= -1")
    assert right["rewards"] == {"accuracy": 1.0, "form": 0.5}
    assert [r["reward"] for r in view["responses"]] == [1.05, 0.05, 1.05, 0.05]
    assert [r["advantage"] for r in view["responses"]] == [1.0, -1.0, 1.0, -1.0]
    assert [r["shaped"] for r in view["responses"]] == [1.0, -1.0, 1.0, -1.0]
    assert [r["length"] for r in view["responses"]] == [1, 2, 3, 4]
    assert [r["logprob"] for r in view["responses"]] == pytest.approx([-1.5, -0.8, -0.8, -0.8])
    tokens = wrong["tokens"]
    assert "".join(tokens["pieces"]) == "= -1"
    assert tokens["sampler"] == [-1.5, -0.1]
    assert tokens["learner"] == [-1.4, 0.0]
    assert tokens["ratio"] == [1.1052, 1.1052]
    assert (tokens["clip"], tokens["versions"]) == ([0, 1], [2, 2])


def test_groups_that_did_not_train(run):
    carried, unscored = browse.group(run, 3, 3001), browse.group(run, 3, 3004)
    tokens = carried["responses"][0]["tokens"]
    assert tokens["sampler"] == pytest.approx([-1.5, -0.1])
    assert (tokens["learner"], tokens["ratio"], tokens["entropy"], tokens["clip"]) == (None, None, None, None)
    assert carried["responses"][0]["advantage"] is None
    response = unscored["responses"][0]
    assert (response["accuracy"], response["reward"], response["rewards"]) == (None, None, {})
    assert (response["unscored"], response["tokens"]) == ("timeout: 10 s", None)


def test_an_episode_shows_its_turns_and_the_numbers_of_the_model_alone(run):
    """Sample 1 has two tokens, log-probabilities -1.5 and -0.1: the second is a reply's."""
    path = run.folder.rollouts / "step_000003.parquet"
    groups = [make_group(3, n, 6, 4, [make_prompt(n) for n in range(8)]) for n in range(2)]
    turns = (Turn(0, 1, "assistant", "7", reward=0.5, calls=("add",), facts={"tries": 2.0}), Turn(1, 2, "tool", "no"))
    own = np.array([True, False])
    played = replace(groups[0].completions_G[1], turns=turns, ended="done", generated=own)
    groups[0].completions_G[1] = played
    write_rollouts(path, 3, groups)
    write_tokens(run.folder.tokens_file(3), 3, groups[:1], [], Pieces(make_word_tokenizer(["a", "b"])))
    plain, episode = browse.group(run, 3, 3000)["responses"][:2]
    assert (plain["turns"], plain["ended"], plain["tokens"]["given"]) == (None, None, None)
    assert episode["ended"] == "done"
    assert episode["turns"] == [
        {"who": "assistant", "text": "7", "reward": 0.5, "calls": ["add"], "facts": {"tries": 2.0}},
        {"who": "tool", "text": "no", "reward": 0.0, "calls": [], "facts": {}},
    ]
    assert [r["logprob"] for r in browse.group(run, 3, 3000)["responses"]] == pytest.approx([-1.5, -1.5, -0.8, -0.8])
    assert (episode["length"], episode["tokens"]["given"]) == (1, [1])
    assert [r["logprob"] for r in browse.group(run, 3, 3001)["responses"]] == pytest.approx([-0.8] * 4)


def test_what_is_not_there(run):
    with pytest.raises(DataError, match="no group 77"):
        browse.group(run, 3, 77)
    with pytest.raises(DataError, match="no rollouts of step 99"):
        browse.groups(run, 99)
    with pytest.raises(DataError, match="prompt 'x'"):
        browse.prompt(run, "x")


@pytest.mark.parametrize("verdict", [*Verdict, None, "of_the_future"])
@pytest.mark.parametrize("disposition", [*Disposition, None, "of_the_future"])
def test_every_reason_is_a_sentence(verdict, disposition):
    said = why(verdict and str(verdict), disposition and str(disposition))
    assert said[0].isupper()
    assert said.endswith(".")
    assert "_" not in said


def test_reasons():
    assert why("all_wrong", "discarded") == "Every vote is wrong: no gradient; dropped."
    assert why("kept", "discarded") == "Kept: its responses differ, so it can teach; surplus of this step, thrown away."
    assert why(None, None) == "Not judged."


def test_the_history_of_a_prompt(run):
    view = browse.prompt(run, content_id("4 + 4 ="))
    assert (view["prompt"], view["answer"], view["source"]) == ("4 + 4 =", "8", "sums")
    assert [(v["step"], v["group"], v["correct"], v["scored"]) for v in view["visits"]] == [
        (2, 2000, 2, 4),
        (3, 3002, 4, 4),
        (4, 4004, 0, 0),
    ]
    assert [v["verdict"] for v in view["visits"]] == ["kept", "all_correct", "too_few_scored"]


def test_prompts_of_the_longest_history_come_first(run):
    found, total = browse.prompts(run, limit=3)
    assert total == 8
    assert [len(view["visits"]) for view in found] == [4, 4, 4]
    assert [view["prompt"] for view in browse.prompts(run, text="5 + 5")[0]] == ["5 + 5 ="]
    assert browse.prompts(run, limit=3, offset=6)[0] == browse.prompts(run)[0][6:]
    assert browse.prompts(run, text="nothing")[1] == 0


def test_prompts_of_a_run_without_a_prompts_file(run):
    run.folder.prompts.unlink()
    assert [view["prompt"] for view in browse.prompts(run, text="5 + 5")[0]] == ["5 + 5 ="]
    assert browse.prompt(run, content_id("4 + 4 ="))["answer"] == "8"


def test_only_files_that_changed_are_read_again(run, monkeypatch):
    opened = []
    real = pq.ParquetFile
    monkeypatch.setattr(
        "dapo.observe.parquet.pq.ParquetFile", lambda path, **kw: opened.append(path) or real(path, **kw)
    )
    assert index_of(run).groups == 30
    assert len(opened) == 5
    assert index_of(run) is index_of(run)
    assert len(opened) == 5
    groups = [make_group(6, n, 6, 4, [make_prompt(n) for n in range(8)]) for n in range(2)]
    write_rollouts(run.folder.rollout_file(6), 6, groups)
    write_rollouts(run.folder.rollout_file(5), 5, groups)  # done again after a resume
    run.folder.rollout_file(1).unlink()
    assert index_of(run).groups == 3 * 6 + 2 + 2
    assert len(opened) == 7
    assert numbers(browse.groups(run, 5)) == ([6000, 6001], 2)


def test_a_damaged_file_is_said_and_the_others_are_read(run):
    path = run.folder.rollout_file(3)
    path.write_bytes(path.read_bytes()[:-20])
    run.folder.rollout_file(4).write_bytes(b"")
    index = index_of(run)
    assert [summary.step for summary in index.summaries] == [1, 2, 5]
    assert [problem.split(" cannot")[0] for problem in index.problems] == ["step_000003.parquet", "step_000004.parquet"]
    with pytest.raises(DataError, match=r"step_000003.parquet cannot be read"):
        browse.groups(run, 3)
    assert browse.groups(run, None)[1] == 18


def test_damaged_token_records_leave_groups_without(run):
    run.folder.tokens_file(3).write_bytes(b"PAR1 nothing")
    view = browse.group(run, 3, 3000)
    assert not view["has_tokens"]
    assert [r["tokens"] for r in view["responses"]] == [None] * 4
    table = pq.read_table(run.folder.tokens_file(4))
    wrong = pa.array([row[:-1] for row in table["sampler"].to_pylist()], pa.list_(pa.float32()))
    pq.write_table(table.set_column(table.column_names.index("sampler"), "sampler", wrong), run.folder.tokens_file(4))
    assert browse.group(run, 4, 4000)["responses"][1]["tokens"] is None  # lists of different lengths


def test_a_file_of_another_version_lacks_columns_and_has_odd_numbers(run):
    path = run.folder.rollout_file(3)
    table = pq.read_table(path).drop_columns(["born", "source", "rewards", "voter", "logprobs"])
    reward = np.full(len(table), np.inf)
    pq.write_table(table.set_column(table.column_names.index("reward"), "reward", pa.array(reward)), path)
    view = browse.group(run, 3, 3000)
    assert (view["born"], view["source"]) == (3, "")
    assert [(r["reward"], r["rewards"], r["voter"], r["logprob"]) for r in view["responses"]] == [
        (None, {}, None, None)
    ] * 4
    pq.write_table(pa.table({"some": ["other", "file"]}), path)
    with pytest.raises(DataError, match="step_000003"):
        browse.groups(run, 3)


def test_the_step_that_stopped_a_run_can_be_looked_at(tmp_path, make_run):
    run = read_run(make_run(tmp_path / "run", steps=2, how="unfilled"))
    assert list(files_of(run)) == [1, 2, 3]
    assert numbers(browse.groups(run, 3, limit=1)) == ([3000], 6)
    # resumed, the step was done: its own file counts
    done = run.folder.rollout_file(3)
    shutil.copy(run.folder.rollout_file(2), done)
    assert files_of(run)[3][0] == done
    assert numbers(browse.groups(run, 3, limit=1)) == ([2000], 6)


def test_groups_over_several_row_groups_of_a_file(tmp_path, make_run):
    run = read_run(make_run(tmp_path / "run", steps=1))
    known = [make_prompt(n) for n in range(8)]
    groups = [make_group(1, n, 200, 3, known, lambda step, n, s: f"group {n} sample {s}") for n in range(200)]
    write_rollouts(run.folder.rollout_file(1), 1, groups)
    assert pq.ParquetFile(run.folder.rollout_file(1)).num_row_groups == 4
    for n in (0, 63, 64, 127, 128, 199):
        view = browse.group(run, 1, 1000 + n)
        assert [r["text"] for r in view["responses"]] == [f"group {n} sample {s}" for s in range(3)]
    assert numbers(browse.groups(run, 1, limit=4, offset=62)) == ([1062, 1063, 1064, 1065], 200)
    assert numbers(browse.groups(run, 1, text="group 150 sample 2")) == ([1150], 1)
    # a file whose row groups cut through groups
    pq.write_table(pq.read_table(run.folder.rollout_file(1)), run.folder.rollout_file(1), row_group_size=7)
    os.utime(run.folder.rollout_file(1), ns=(1, 1))
    assert [r["text"] for r in browse.group(run, 1, 1002)["responses"]] == [f"group 2 sample {s}" for s in range(3)]


def test_hostile_text_comes_through_as_it_is(tmp_path, make_run):
    run = read_run(make_run(tmp_path / "run", steps=1, text=lambda step, n, s: HOSTILE))
    assert browse.group(run, 1, 1000)["responses"][0]["text"] == HOSTILE
    assert browse.groups(run, 1, text="</SCRIPT>")[1] == 6
    assert "".join(browse.group(run, 1, 1001)["responses"][3]["tokens"]["pieces"]) == HOSTILE


def test_a_run_without_rollouts(tmp_path, make_run):
    run = read_run(make_run(tmp_path / "run", parts="status"))
    assert browse.steps_of(run) == []
    assert browse.groups(run, None) == ([], 0)
    assert browse.prompts(run) == ([], 0)


def test_an_empty_step(run):
    write_rollouts(run.folder.rollout_file(7), 7, [])
    assert browse.groups(run, 7) == ([], 0)
    assert browse.groups(run, 7, text="a") == ([], 0)


def test_correct_is_from_the_recipes_bound_on(tmp_path, make_run):
    folder = make_run(tmp_path / "run", steps=1, settings={"algorithm": {"dynamic_sampling": {"correct_at": 0.5}}})
    path = folder / "rollouts" / "step_000001.parquet"
    table = pq.read_table(path)
    accuracy = pa.array([0.5, 0.4, None, np.nan] * 6, pa.float64())
    pq.write_table(table.set_column(table.column_names.index("accuracy"), "accuracy", accuracy), path)
    view = browse.groups(read_run(folder), 1)[0][0]
    assert (view["correct"], view["scored"]) == (1, 2)
