import numpy as np
import pyarrow.parquet as pq
import pytest

from dapo.errors import CheckpointError, DataError
from dapo.observe.prompts import SCHEMA, History, Standing, read_prompts, write_prompts
from dapo.types.batch import Prompt
from dapo.types.enums import Verdict

VERDICTS = list(Verdict)


def prompt(n, problem=None, source="toy"):
    return Prompt(f"{n:016x}", "rendered", np.array([1]), problem or f"problem {n}", str(n), source)


def state(**changes):
    """Four prompts: solved, hopeless, kept, too few scored; one more in the data."""
    verdicts = [Verdict.ALL_CORRECT, Verdict.ALL_WRONG, Verdict.KEPT, Verdict.TOO_FEW_SCORED]
    return {
        "ids": ["a", "b", "c", "d"],
        "visits": np.array([1, 2, 3, 1]),
        "responses": np.array([4, 8, 12, 0]),
        "correct": np.array([4, 1, 6, 0]),
        "last_responses": np.array([4, 4, 4, 0]),
        "last_correct": np.array([4, 0, 3, 0]),
        "streak": np.array([1, 1, 0, 0]),
        "last_step": np.array([5, 6, 7, 8]),
        "verdict": np.array([VERDICTS.index(v) for v in verdicts]),
        "verdicts": [verdict.value for verdict in VERDICTS],
        "greso": {"p_easy": 0.25, "p_hard": 0.75},
        "size": 5,
    } | changes


def test_prompts_come_back_in_their_order(tmp_path):
    path = tmp_path / "prompts.parquet"
    write_prompts(path, [prompt(2), prompt(1, source="other"), prompt(2), prompt(3, problem="a\ud800b")])
    table = read_prompts(path)
    assert table.schema.equals(SCHEMA)
    assert table["id"].to_pylist() == [f"{n:016x}" for n in (2, 1, 2, 3)]
    assert table["source"].to_pylist() == ["toy", "other", "toy", "toy"]
    assert table["problem"].to_pylist() == ["problem 2", "problem 1", "problem 2", "a\ufffdb"]
    assert table["answer"].to_pylist() == ["2", "1", "2", "3"]
    assert pq.ParquetFile(path).metadata.row_group(0).column(2).compression == "ZSTD"
    assert [p.name for p in tmp_path.iterdir()] == ["prompts.parquet"]


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "prompts.parquet"
    write_prompts(path, [prompt(1)])

    def fail(writer, table):
        raise OSError("disk full")

    monkeypatch.setattr(pq.ParquetWriter, "write_table", fail)
    with pytest.raises(OSError, match="disk full"):
        write_prompts(path, [prompt(2)])
    assert read_prompts(path)["answer"].to_pylist() == ["1"]


def test_what_cannot_be_read_is_named(tmp_path):
    with pytest.raises(DataError, match=r"no prompts at .*prompts\.parquet"):
        read_prompts(tmp_path / "prompts.parquet")
    damaged = tmp_path / "damaged.parquet"
    damaged.write_bytes(b"PAR1 nothing")
    with pytest.raises(DataError, match=r"damaged\.parquet cannot be read as prompts"):
        read_prompts(damaged)
    other = tmp_path / "other.parquet"
    pq.write_table(SCHEMA.empty_table().drop_columns(["answer"]), other)
    with pytest.raises(DataError, match="answer"):
        read_prompts(other)


def test_a_large_set_is_gone_through_once_a_column(tmp_path):
    class Counted(list):
        looks = 0

        def __iter__(self):
            for one in super().__iter__():
                Counted.looks += 1
                yield one

        def __getitem__(self, place):
            Counted.looks += 1
            return super().__getitem__(place)

    prompts = Counted(prompt(n, problem=f"problem {n} " + "of many words " * 20) for n in range(2_000))
    write_prompts(tmp_path / "prompts.parquet", prompts)
    assert Counted.looks == 2_000 * len(SCHEMA)
    assert read_prompts(tmp_path / "prompts.parquet")["problem"].to_pylist() == [p.problem for p in list(prompts)]


def test_the_standing_of_every_prompt():
    history = History.from_state(state())
    found = {standing: np.array(history.ids)[history.standing(standing)].tolist() for standing in Standing}
    assert found == {"solved": ["a"], "hopeless": ["b"], "useful": ["c"], "unjudged": ["d"]}
    assert history.unseen == 1
    np.testing.assert_array_equal(history.pass_rates(), [1.0, 0.125, 0.5, np.nan])
    np.testing.assert_array_equal(history.last_pass_rates(), [1.0, 0.0, 0.75, np.nan])
    assert (history.greso.p_easy, history.greso.p_hard) == (0.25, 0.75)


def test_every_verdict_has_one_standing():
    n = len(VERDICTS)
    columns = {name: np.zeros(n, int) for name in state() if isinstance(state()[name], np.ndarray)}
    history = History.from_state(
        state() | columns | {"ids": VERDICTS, "verdict": np.arange(n), "verdicts": VERDICTS, "size": n}
    )
    assert sum(history.standing(standing) for standing in Standing).tolist() == [1] * n
    useful = {v for v, yes in zip(VERDICTS, history.standing(Standing.USEFUL), strict=True) if yes}
    assert useful == {Verdict.KEPT, Verdict.UNIFORM, Verdict.OUT_OF_BAND}
    assert history.having(Verdict.UNIFORM).sum() == 1


def test_retired_prompts_reach_the_pass_rate_at_their_last_visit():
    history = History.from_state(state())
    assert history.retired(None).tolist() == [False] * 4
    assert history.retired(1.0).tolist() == [True, False, False, False]
    assert history.retired(0.75).tolist() == [True, False, True, False]
    assert history.retired(0.01).tolist() == [True, False, True, False]  # no vote is not a pass rate


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"visits": np.zeros(3, int)}, "different lengths"),
        ({"verdict": np.array([0, 1, 2, 99])}, "verdicts that it does not name"),
        ({"verdict": np.array([0, 1, 2, -1])}, "verdicts that it does not name"),
        ({"streak": "many"}, "cannot be read"),
        ({"verdicts": ["odd"]}, "'odd' is not a valid Verdict"),
    ],
)
def test_a_history_that_makes_no_sense_is_refused(changes, part):
    with pytest.raises(CheckpointError, match=part):
        History.from_state(state(**changes))


def test_a_missing_column_is_named():
    with pytest.raises(CheckpointError, match="last_step"):
        History.from_state({k: v for k, v in state().items() if k != "last_step"})


def test_a_history_of_nothing():
    empty = {name: value[:0] for name, value in state().items() if isinstance(value, np.ndarray) or name == "ids"}
    history = History.from_state(state() | empty | {"verdicts": VERDICTS, "size": 7})
    assert history.unseen == 7
    assert not history.standing(Standing.SOLVED).any()
