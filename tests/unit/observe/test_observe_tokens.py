"""Token records: a response worked by hand, which groups are chosen, and pieces of every kind of tokenizer."""

from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from dapo.errors import DataError
from dapo.models.tiny import make_word_tokenizer
from dapo.observe.tables import TableWriter
from dapo.observe.tokens import SCHEMA, Pieces, read_tokens, select_for_tokens, token_table, write_tokens
from dapo.types.batch import Group, Prompt, Response, Score, TokenTrace
from dapo.types.enums import Disposition, FinishReason, Verdict

WORDS = ("four", "+7", "=11")  # ids 3, 4, 5; <eos> is 1


@pytest.fixture(scope="module")
def words():
    return Pieces(make_word_tokenizer(WORDS))


def group(number, disposition=Disposition.TRAINED, responses=((4, 1),)):
    completions = [
        Response(
            np.array(ids, np.int64),
            np.linspace(-1, -0.5, len(ids), dtype=np.float32),
            np.full(len(ids), 6, np.int32),
            FinishReason.STOP,
        )
        for ids in responses
    ]
    prompt = Prompt("p", "four", np.array([3]), "four", "11", "s")
    return Group(number, prompt, completions, [Score()] * len(completions), 1, Verdict.KEPT, disposition)


def floats(*values):
    return np.array(values, dtype=np.float32)


def test_a_response_of_two_tokens_by_hand(words):
    """+7 then the end: log-probabilities -1 and -0.5 when sampled, -0.75 and -1.5 when learned."""
    trace = TokenTrace(
        group=8,
        sample=0,
        logprobs=floats(-0.75, -1.5),
        old_logprobs=floats(-1, -0.5),
        ratio=floats(1.25, 0.375),
        entropy=floats(0.5, 0.25),
        clip=np.array([2, 0], np.int8),
    )
    trained = group(8, responses=[(4, 1), (5,)])
    rows = token_table(7, [trained, group(9, Disposition.DISCARDED)], {(8, 0): trace}, words).to_pylist()
    assert rows[0] == {
        "step": 7,
        "group": 8,
        "sample": 0,
        "pieces": ["+7", "<eos>"],
        "sampler": [-1.0, -0.5],
        "learner": [-0.75, -1.5],
        "old": [-1.0, -0.5],
        "ratio": [1.25, 0.375],
        "entropy": [0.5, 0.25],
        "clip": [2, 0],
        "versions": [6, 6],
        "generated": None,
    }
    nothing = {"learner": None, "old": None, "ratio": None, "entropy": None, "clip": None}
    assert (
        rows[1]
        == {"step": 7, "group": 8, "sample": 1, "pieces": ["=11"], "sampler": [-1.0], "versions": [6]}
        | {"generated": None}
        | nothing
    )
    assert (rows[2]["group"], rows[2]["pieces"], rows[2]["sampler"]) == (9, ["+7", "<eos>"], [-1.0, -0.5])
    assert {key: rows[2][key] for key in nothing} == nothing


def test_tokens_that_the_program_put_in_are_marked(words):
    episode = group(8, responses=[(4, 5, 1), (4,)])
    episode.completions_G[0] = replace(episode.completions_G[0], generated=np.array([True, False, True]))
    rows = token_table(7, [episode], {}, words).to_pylist()
    assert [row["generated"] for row in rows] == [[True, False, True], None]


def test_a_loss_without_clip_flags_and_a_response_without_tokens(words):
    empty = floats()
    trace = TokenTrace(8, 0, empty, empty, empty, empty, None)
    (row,) = token_table(1, [group(8, responses=[()])], {(8, 0): trace}, words).to_pylist()
    assert (row["pieces"], row["learner"], row["clip"], row["versions"]) == ([], [], None, [])


def test_file_round_trip(tmp_path, words):
    path, groups = tmp_path / "tokens" / "step_000007.parquet", [group(n) for n in range(40)]
    write_tokens(path, 7, groups, [], words)
    assert [p.name for p in path.parent.iterdir()] == [path.name]  # no temporary file is left
    assert read_tokens(path).schema.names == SCHEMA.names
    assert read_tokens(path).schema.metadata == {b"dapo.tokens": b"1"}
    assert read_tokens(path).to_pylist() == token_table(7, groups, {}, words).to_pylist()
    assert pq.ParquetFile(path).metadata.row_group(0).column(0).compression == "ZSTD"


def test_what_is_no_token_file_is_refused(tmp_path):
    path = tmp_path / "step_000001.parquet"
    with pytest.raises(DataError, match="cannot be read as token records"):
        read_tokens(path)
    path.write_bytes(b"PAR1 half")
    with pytest.raises(DataError, match="cannot be read as token records"):
        read_tokens(path)
    pq.write_table(token_table(1, [], {}, None).select(["step", "group"]), path)
    with pytest.raises(DataError, match="holds no token records: its columns are step, group"):
        read_tokens(path)


def test_the_chosen_groups_are_spread_over_those_that_train_and_one_that_never_will():
    D = Disposition
    kinds = [D.TRAINED] * 4 + [D.DISCARDED, D.CARRIED, D.EXPIRED, D.DISCARDED] + [D.FILLED, D.TRAINED, D.COPIED]
    groups = [group(n, kind) for n, kind in enumerate(kinds)]

    def ids(count, of=groups):
        return [g.id for g in select_for_tokens(of, count)]

    assert ids(3) == [0, 2, 8, 6]  # of 0 1 2 3 8 9 every second, and the middle one of 4 6 7
    assert ids(6) == ids(99) == [0, 1, 2, 3, 8, 9, 6]
    assert ids(1) == [0, 6]
    assert ids(0) == []
    assert ids(3, groups[:2]) == [0, 1]
    assert ids(3, [groups[5]]) == []  # a carried one trains later
    assert ids(3, []) == []


# ---------------------------------------------------------------------------------------------- pieces


def byte_level():
    """One token for each byte, as in GPT-2's alphabet, and a special token behind them."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<|end|>", clean_up_tokenization_spaces=False)


def sentence_piece():
    """Words with their blank in front, which the first one of a text loses, and bytes for what has no word."""
    pieces = ["<unk>", "</s>", "▁two", "▁plus", "s", "▁"] + [f"<0x{b:02X}>" for b in range(256)]
    raw = Tokenizer(models.BPE(vocab={p: i for i, p in enumerate(pieces)}, merges=[], byte_fallback=True))
    raw.normalizer = normalizers.Replace(" ", "▁")
    raw.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="</s>", clean_up_tokenization_spaces=False)


BYTES, SENTENCES = byte_level(), sentence_piece()


def of_bytes(text, tokenizer=BYTES):
    data = text if isinstance(text, bytes) else text.encode()
    names = [f"<0x{b:02X}>" if tokenizer is SENTENCES else _GPT2[b] for b in data]
    return np.array(tokenizer.convert_tokens_to_ids(names), np.int64)


def _gpt2():
    """Byte -> its character in the byte-level alphabet."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [b for b in range(256) if b not in shown]
    return {b: chr(b) for b in shown} | {b: chr(256 + n) for n, b in enumerate(hidden)}


_GPT2 = _gpt2()


def test_words_carry_the_blank_before_them(words):
    assert words(np.array([4, 5, 3, 1])) == ["+7", " =11", " four", "<eos>"]
    assert words(np.array([4, 5, 3, 1])) == ["+7", " =11", " four", "<eos>"]  # from memory
    assert words(np.array([5, 4])) == ["=11", " +7"]
    assert words(np.array([], np.int64)) == []


def test_special_tokens_in_the_middle_show_their_name(words):
    assert words(np.array([4, 0, 5, 1, 1])) == ["+7", "<pad>", " =11", "<eos>", "<eos>"]
    assert words(np.array([0, 5])) == ["<pad>", "=11"]  # the first of its text now, whatever came before it earlier
    assert words(np.array([4, 0, 5, 1, 1])) == ["+7", "<pad>", " =11", "<eos>", "<eos>"]  # and no longer the first
    assert words(np.array([4, 5])) == ["+7", " =11"]


def test_a_character_of_several_bytes_stands_at_the_last_of_them():
    pieces = Pieces(BYTES)
    assert pieces(of_bytes("aé€🎉b")) == ["a", "", "é", "", "", "€", "", "", "", "🎉", "b"]
    assert pieces(of_bytes("é".encode()[:1])) == ["\ufffd"]  # the response ended in the middle
    assert pieces(of_bytes(b"a\xe2\x82")) == ["a", "", "\ufffd"]


def test_a_first_blank_that_the_text_loses_is_no_piece_either():
    ids = np.array(SENTENCES.convert_tokens_to_ids(["▁two", "s", "▁plus", "▁two", "</s>"]))
    assert Pieces(SENTENCES)(ids) == ["two", "s", " plus", " two", "</s>"]
    both = np.concatenate([ids[:1], of_bytes("€€", SENTENCES), ids[:1]])
    assert Pieces(SENTENCES)(both) == ["two", "", "", "€", "", "", "€", " two"]


def joined(tokenizer, ids, pieces):
    special = set(tokenizer.all_special_ids)
    return "".join(piece for i, piece in zip(ids, pieces, strict=True) if int(i) not in special)


@given(st.lists(st.text(min_size=1, max_size=12), max_size=6), st.integers(0, 40))
def test_joined_pieces_are_the_decoded_text_special_tokens_aside(parts, cut):
    """Any text, special tokens between its parts, cut off anywhere; the memory of earlier responses changes nothing."""
    end = [BYTES.eos_token_id]
    ids = np.array([i for part in parts for i in (*of_bytes(part), *end)], np.int64)[:cut]
    pieces = SHARED(ids)
    assert joined(BYTES, ids, pieces) == BYTES.decode(ids.tolist(), skip_special_tokens=True)
    assert pieces == Pieces(BYTES)(ids)


SHARED = Pieces(BYTES)


@given(st.lists(st.integers(0, 5), max_size=20))
def test_so_it_is_for_words_and_sentence_pieces(numbers):
    for tokenizer, lowest in ((SENTENCES, 1), (make_word_tokenizer(WORDS), 0)):
        ids = np.array(numbers, np.int64).clip(lowest)
        text = tokenizer.decode(ids.tolist(), skip_special_tokens=True)
        assert joined(tokenizer, ids, Pieces(tokenizer)(ids)) == text


def test_a_long_run_of_bytes_that_are_no_text_takes_linear_time():
    asked = []

    class Counting:
        all_special_ids = ()

        def decode(self, ids, skip_special_tokens):
            asked.append(len(ids))
            return BYTES.decode(ids)

    pieces = Pieces(Counting())(of_bytes(b"\xff" * 3000))
    assert len(pieces) == 3000
    assert "".join(pieces) == "\ufffd" * 3000
    assert max(asked) <= 2 * Pieces._MOST_HELD
    assert len(asked) <= 2 * 3000


def test_ids_beyond_the_tokenizer_have_no_text(words):
    assert words(np.array([4, 77, 5])) == ["+7", "", " =11"]


def test_the_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(Pieces, "_MEMORY", 10)
    pieces = Pieces(BYTES)
    for n in range(30):
        assert pieces(of_bytes(chr(65 + n % 26) + "xyz"[: n % 3])) == list(chr(65 + n % 26) + "xyz"[: n % 3])
        assert len(pieces._known) <= 10 + 4


# ---------------------------------------------------------------------------------------------- written a little later


def test_files_are_written_later_and_errors_are_told(tmp_path, words):
    writer = TableWriter()
    first, second = tmp_path / "a" / "1.parquet", tmp_path / "b" / "2.parquet"
    write_tokens(first, 1, [group(1)], [], words, writer.write)
    assert not first.exists()
    writer.start()
    write_tokens(second, 2, [group(2)], [], words, writer.write)
    writer.sync()
    assert read_tokens(first).column("step").to_pylist() == [1]
    assert read_tokens(second).column("step").to_pylist() == [2]
    (tmp_path / "c").write_text("no folder")
    write_tokens(tmp_path / "c" / "3.parquet", 3, [group(3)], [], words, writer.write)
    writer.start()
    with pytest.raises(OSError):
        writer.sync()
    writer.sync()  # told once
    writer.close()


def test_a_file_of_many_groups_is_written_at_once(tmp_path, words):
    writer, path = TableWriter(), tmp_path / "1.parquet"
    groups = [group(n) for n in range(16 * 8)]
    write_tokens(path, 1, groups, [], words, writer.write)
    assert read_tokens(path).column("group").to_pylist() == list(range(16 * 8))
    writer.close()
