"""Tiny random models that read and write any text, saved as ordinary Hugging Face folders.

Beside ``dapo.models.tiny``, whose models know the words of one task: here every byte is a token, and where there is
text to learn from, its commonest pieces are tokens too (byte-level BPE). Digits always stand alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from dapo.errors import ModelError
from dapo.models.tiny import EOS, PAD, make_tiny_model

SPECIAL = (PAD, EOS)
BYTES = len(SPECIAL) + 256
"""Tokens of a vocabulary that merges nothing."""


def make_text_tokenizer(texts: Iterable[str] = (), vocabulary: int = BYTES, phrases: Sequence[str] = ()) -> Any:
    """Make a byte-level tokenizer: any text becomes tokens, and from them the same text again.

    ``<pad>`` is id 0, ``<eos>`` 1, then come the 256 bytes and what is merged from them.

    Args:
        texts: what pieces are learnt from. Take training data alone.
        vocabulary: tokens at most, ``phrases`` apart; ``BYTES`` merges nothing. Fewer where ``texts`` hold no more
            pieces that come twice.
        phrases: texts that are one token wherever they stand, such as what every prompt of a task begins with: a
            prompt that says the same each time then costs one token and not a hundred.

    Raises:
        ModelError: ``vocabulary`` is too small for the bytes, or a phrase is empty.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE
    from tokenizers.trainers import BpeTrainer
    from transformers import PreTrainedTokenizerFast

    if vocabulary < BYTES:
        raise ModelError(f"a byte-level vocabulary has {BYTES} tokens or more, found {vocabulary}")
    if "" in phrases:
        raise ModelError("an empty phrase would stand everywhere; take it out of `phrases`")
    raw = Tokenizer(BPE())
    raw.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    raw.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=vocabulary,
        min_frequency=2,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    raw.train_from_iterator(texts, trainer)
    raw.add_tokens([AddedToken(phrase, normalized=False) for phrase in phrases])
    return PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token=PAD, eos_token=EOS, clean_up_tokenization_spaces=False
    )


def make_text_model(
    folder: str | Path,
    texts: Iterable[str] = (),
    *,
    vocabulary: int = BYTES,
    phrases: Sequence[str] = (),
    **settings: Any,
) -> Path:
    """Save a random llama with a tokenizer for ``texts`` to ``folder``, and return the folder.

    Args:
        folder: as ``make_tiny_model`` has it, which makes the model.
        texts: see ``make_text_tokenizer``.
        vocabulary: see there. The embedding has a row for each token.
        phrases: see there.
        settings: ``hidden``, ``layers``, ``heads``, ``ffn``, ``seed`` and the others of ``make_tiny_model``.
    """
    tokenizer = make_text_tokenizer(texts, vocabulary, phrases)
    # Llama: beside some other configurations AutoTokenizer would replace the saved tokenizer's rules. Its own word
    # tokenizer has the same ids for padding and end, which the configuration names, and is written over.
    made = make_tiny_model(folder, "llama", vocabulary=len(tokenizer), **settings)
    tokenizer.save_pretrained(made)
    return made
