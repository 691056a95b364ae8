from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest

from dapo.errors import DataError
from dapo.observe.rollouts import SCHEMA, read_rollouts, rollout_table, select_groups, write_rollouts
from dapo.types.batch import Group, Prompt, Response, Score
from dapo.types.enums import Disposition, FinishReason, Verdict


def prompt(text="1 + 1"):
    return Prompt(id="abc", text=text, token_ids=np.array([5, 6]), problem=text, answer="2", source="toy")


def completion(tokens, finish=FinishReason.STOP, text="two", version=3):
    n = len(tokens)
    return Response(
        np.array(tokens, np.int64), np.full(n, -0.5, np.float32), np.full(n, version, np.int32), finish, text
    )


def group(number=7, verdict=Verdict.KEPT, disposition=Disposition.TRAINED):
    return Group(
        id=number,
        prompt=prompt(),
        completions_G=[completion([9, 1]), completion([], FinishReason.LENGTH, ""), completion([4, 4, 4])],
        scores_G=[
            Score({"accuracy": 1.0, "format": 0.5}, 1.5),
            Score({"accuracy": 0.0, "format": 0.0}, 0.0),
            Score(reason="exception: boom"),
        ],
        born=2,
        verdict=verdict,
        disposition=disposition,
    )


def trained():
    g = group()
    g.voters_G = np.array([True, True, False])
    g.penalties_G = np.array([0.0, -0.5, 0.0])
    g.rewards_G = np.array([1.0, -1.5, np.nan])
    g.advantages_G = np.array([0.7, -0.7, 0.0])
    return g


def test_one_row_a_response_with_everything_that_was_known():
    table = rollout_table(4, [trained()])
    assert table.schema.equals(SCHEMA, check_metadata=True)
    first, second, third = table.to_pylist()
    assert first == {
        "step": 4,
        "turns": None,
        "ended": None,
        "born": 2,
        "group": 7,
        "sample": 0,
        "prompt_id": "abc",
        "source": "toy",
        "prompt": "1 + 1",
        "answer": "2",
        "response": "two",
        "token_ids": [9, 1],
        "logprobs": [-0.5, -0.5],
        "versions": [3, 3],
        "generated": None,
        "length": 2,
        "finish": "stop",
        "accuracy": 1.0,
        "rewards": [("accuracy", 1.0), ("format", 0.5)],
        "reward": 1.5,
        "penalty": 0.0,
        "shaped_reward": 1.0,
        "advantage": 0.7,
        "voter": True,
        "verdict": "kept",
        "disposition": "trained",
        "unscored": None,
    }
    assert (second["sample"], second["token_ids"], second["length"], second["finish"]) == (1, [], 0, "length")
    assert (second["penalty"], second["advantage"]) == (-0.5, -0.7)
    assert third["unscored"] == "exception: boom"
    assert (third["accuracy"], third["reward"], third["rewards"], third["shaped_reward"]) == (None, None, [], None)
    assert (third["voter"], third["advantage"], third["token_ids"]) == (False, 0.0, [4, 4, 4])


def test_tokens_that_the_program_put_in_are_marked():
    ended = trained()
    put_in = np.array([True, False, False])
    ended.completions_G[2] = replace(ended.completions_G[2], generated=put_in)
    rows = rollout_table(4, [ended]).to_pylist()
    assert [row["generated"] for row in rows] == [None, None, [True, False, False]]


def test_a_group_that_did_not_train_has_no_advantage():
    rows = rollout_table(1, [group(1, Verdict.ALL_WRONG, Disposition.DISCARDED), trained()]).to_pylist()
    assert [row["advantage"] for row in rows] == [None, None, None, 0.7, -0.7, 0.0]
    assert [row["voter"] for row in rows[:3]] == [None, None, None]
    assert [row["group"] for row in rows] == [1, 1, 1, 7, 7, 7]


def test_file_round_trip_over_many_row_groups(tmp_path):
    groups = [group(i) for i in range(130)]
    path = tmp_path / "rollouts" / "step_000004.parquet"
    write_rollouts(path, 4, groups)
    assert [p.name for p in path.parent.iterdir()] == [path.name]  # no temporary file is left
    assert pq.ParquetFile(path).num_row_groups == 3
    assert pq.ParquetFile(path).metadata.row_group(0).column(0).compression == "ZSTD"
    assert read_rollouts(path).to_pylist() == rollout_table(4, groups).to_pylist()


def test_a_later_stop_at_the_same_step_adds_what_is_new(tmp_path):
    path = tmp_path / "stopped_000004.parquet"
    write_rollouts(path, 4, [group(1), group(2)], add=True)  # no file yet
    later = group(2, Verdict.ALL_WRONG)
    write_rollouts(path, 4, [later, group(3)], add=True)
    rows = read_rollouts(path).to_pylist()
    assert [row["group"] for row in rows] == [1] * 3 + [2] * 3 + [3] * 3
    assert {row["verdict"] for row in rows if row["group"] == 2} == {"all_wrong"}
    write_rollouts(path, 4, [group(5)])
    assert {row["group"] for row in read_rollouts(path).to_pylist()} == {5}


def test_a_step_without_groups_is_a_file_without_rows(tmp_path):
    path = tmp_path / "step_000001.parquet"
    write_rollouts(path, 1, [])
    assert read_rollouts(path).num_rows == 0


def test_a_folder_is_read_in_order_of_steps_and_by_column(tmp_path):
    for step in (10, 9):
        write_rollouts(tmp_path / f"step_{step:06d}.parquet", step, [group()])
    table = read_rollouts(tmp_path, columns=["step", "response"])
    assert table.column_names == ["step", "response"]
    assert table["step"].to_pylist() == [9, 9, 9, 10, 10, 10]


def test_hostile_text_is_kept_and_lone_surrogates_are_replaced(tmp_path):
    g = group()
    g.prompt = prompt("</script>\x00\ud800\x1b[2J\u202e")
    g.scores_G[2] = Score(reason="exception: \udfff")
    path = tmp_path / "step_000001.parquet"
    write_rollouts(path, 1, [g])
    rows = read_rollouts(path).to_pylist()
    assert rows[0]["prompt"] == "</script>\x00\ufffd\x1b[2J\u202e"
    assert rows[2]["unscored"] == "exception: \ufffd"


def test_what_is_no_rollout_file_is_refused(tmp_path):
    with pytest.raises(DataError, match="no rollouts"):
        read_rollouts(tmp_path)
    with pytest.raises(DataError, match="no rollouts"):
        read_rollouts(tmp_path / "step_000001.parquet")
    (tmp_path / "step_000001.parquet").write_bytes(b"PAR1 and then the disk was full")
    with pytest.raises(DataError, match="cannot be read"):
        read_rollouts(tmp_path)


def test_selection():
    groups = [
        group(0, Verdict.KEPT, Disposition.TRAINED),
        group(1, Verdict.ALL_WRONG, Disposition.DISCARDED),
        group(2, Verdict.KEPT, Disposition.CARRIED),
        group(3, Verdict.ALL_CORRECT, Disposition.FILLED),
        group(4, Verdict.ALL_CORRECT, Disposition.TRAINED),  # dynamic sampling off
        group(5, Verdict.UNIFORM, Disposition.DISCARDED),
    ]

    def ids(which):
        return [g.id for g in select_groups(groups, which)]

    assert ids("all") == [0, 1, 2, 3, 4, 5]
    assert ids("kept") == [0, 2, 3, 4]
    assert ids("none") == []
    assert ids(3) == [0, 2, 4]
    assert ids(4) == [0, 1, 3, 4]
    assert ids(6) == ids(99) == [0, 1, 2, 3, 4, 5]
