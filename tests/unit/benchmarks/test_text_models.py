"""Models over any text: the tokenizer loses nothing, learns what is common, and the folder loads as any other."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dapo.errors import ModelError
from dapo.models.tokenizer import load_tokenizer

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks"))
from text_models import BYTES, make_text_model, make_text_tokenizer

TEXTS = ["How many apples are there? 12 + 7 = 19", "How many pears are there? 3 + 45 = 48"]


@pytest.fixture(scope="module")
def merging():
    return make_text_tokenizer(TEXTS, BYTES + 40, phrases=("How many ", " = "))


@pytest.mark.whole
@given(st.text())
def test_any_text_comes_back(merging, text):
    """Special tokens are the exception: their names are no text."""
    if "<pad>" in text or "<eos>" in text:
        return
    assert merging.decode(merging(text)["input_ids"]) == text


def test_bytes_alone_are_one_token_each():
    tokenizer = make_text_tokenizer()
    assert len(tokenizer) == BYTES == 258
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id) == (0, 1)
    assert len(tokenizer("spell né")["input_ids"]) == 9  # é is two bytes


def test_what_is_common_is_merged_and_digits_stand_alone(merging):
    def pieces(text):
        return [merging.decode([one]) for one in merging(text)["input_ids"]]

    assert pieces(" there? 1945") == [" there", "?", " ", "1", "9", "4", "5"]
    assert pieces("How many are there = 1") == ["How many ", *pieces("are there"), " = ", "1"]
    assert len(merging) <= BYTES + 40 + 2
    alone = make_text_tokenizer(["12 12 12 12 12"], 400)  # nothing but digits and spaces: no pair to merge
    assert len(alone) == BYTES


def test_what_cannot_be_is_refused():
    with pytest.raises(ModelError, match="258 tokens or more, found 100"):
        make_text_tokenizer(TEXTS, 100)
    with pytest.raises(ModelError, match="empty phrase"):
        make_text_tokenizer(TEXTS, phrases=("a", ""))


def test_the_folder_is_a_model_whose_tokenizer_keeps_its_ids(merging, tmp_path: Path):
    folder = make_text_model(
        tmp_path / "model",
        TEXTS,
        vocabulary=BYTES + 40,
        phrases=("How many ", " = "),
        hidden=16,
        heads=2,
        ffn=16,
        seed=3,
    )
    notes: list[str] = []
    tokenizer = load_tokenizer(str(folder), False, notes)
    assert notes == []
    for text in (*TEXTS, "Ünï 日本\n\n5"):
        assert tokenizer(text)["input_ids"] == merging(text)["input_ids"]
    assert tokenizer.eos_token_id == 1
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.config.vocab_size == len(tokenizer) == model.get_input_embeddings().weight.shape[0]
    assert model.generation_config.eos_token_id == 1


def test_making_one_says_nothing_and_leaves_progress_bars_as_they_were(tmp_path: Path, capfd):
    from transformers.utils import logging as hf_logging

    shown = hf_logging.is_progress_bar_enabled()
    hf_logging.enable_progress_bar()
    try:
        make_text_model(tmp_path / "model", hidden=16, layers=1, heads=2, ffn=16)
        assert hf_logging.is_progress_bar_enabled()
    finally:
        if not shown:
            hf_logging.disable_progress_bar()
    assert capfd.readouterr() == ("", "")
