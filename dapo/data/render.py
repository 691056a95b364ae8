"""From problems to prompts: the text the model sees, and its tokens.

The tokenizer is any object with the ``__call__`` and ``apply_chat_template`` of transformers' tokenizers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from dapo.config.schema import Data
from dapo.contracts.types import Prompt, content_id
from dapo.data.formats import Problem
from dapo.data.messages import LAST, SYSTEM, Message
from dapo.errors import DataError

PLACEHOLDER = "{problem}"
_BATCH = 1024  # texts per tokenizer call


def resolve_style(data: Data, tokenizer: Any) -> Literal["chat", "template", "raw"]:
    """Which way prompts are made, with ``auto`` decided and contradictions refused.

    Raises:
        DataError: a chat without a chat template, a template without ``{problem}``, a setting without effect.
    """
    has_chat = bool(getattr(tokenizer, "chat_template", None))
    style = data.prompt
    if style == "auto":
        style = "template" if data.prompt_template is not None else "chat" if has_chat else "raw"
    if style == "chat" and not has_chat:
        raise DataError(
            "`data.prompt: chat`, but the tokenizer has no chat template; use an instruction-tuned model's tokenizer, "
            "or set `data.prompt_template`"
        )
    if style == "template":
        if data.prompt_template is None or PLACEHOLDER not in data.prompt_template:
            raise DataError(f"`data.prompt_template` must hold {PLACEHOLDER}, found {data.prompt_template!r}")
    elif data.prompt_template is not None:
        raise DataError(f"`data.prompt_template` is set, but prompts are made by `{style}`; remove one of them")
    if data.system_prompt is not None and style != "chat":
        raise DataError(f"`data.system_prompt` needs `data.prompt: chat`, and prompts are made by `{style}`")
    return style


def render(problem: Problem, data: Data, style: str, tokenizer: Any) -> str:
    """The text of one prompt.

    Raises:
        DataError: the chat template refuses the messages (some accept no system message), or the problem is a
            conversation and prompts are not made by a chat template.
    """
    text = f"{problem.problem}\n\n{data.instruction}" if data.instruction else problem.problem
    if style != "chat" and problem.messages:
        roles = [message["role"] for message in problem.messages]
        raise DataError(
            f"{problem.row}: messages of {roles} need `data.prompt: chat` (and a tokenizer with a chat template), and "
            f"prompts are made by `{style}`; map `problem` to a field that holds text"
        )
    if style == "raw":
        return text
    if style == "template":
        # not str.format: problems and templates are full of LaTeX braces
        return (data.prompt_template or PLACEHOLDER).replace(PLACEHOLDER, text)
    messages = _messages(problem, text, data.system_prompt)
    try:
        return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
    except Exception as error:  # jinja's own errors, and whatever a template raises on purpose
        hint = "; remove `data.system_prompt` if the template accepts none" if data.system_prompt is not None else ""
        roles = [message["role"] for message in messages]
        raise DataError(
            f"{problem.row}: the tokenizer's chat template failed on messages of {roles}: {type(error).__name__}: "
            f"{error}{hint}"
        ) from error


def _messages(problem: Problem, text: str, system_prompt: str | None) -> list[Message]:
    """The conversation, its last message with the instruction, its first one the recipe's system message.

    Raises:
        DataError: the recipe and the record both have a system message.
    """
    if not problem.messages:
        messages: list[Message] = [{"role": LAST, "content": text}]
    else:
        messages = [*problem.messages[:-1], {**problem.messages[-1], "content": text}]
    if system_prompt is None:
        return messages
    if any(message["role"] in SYSTEM for message in messages):
        raise DataError(
            f"{problem.row}: its messages hold a system message of their own, and `data.system_prompt` is set; remove "
            "one of them"
        )
    return [{"role": "system", "content": system_prompt}, *messages]


def tokenize(texts: Sequence[str], tokenizer: Any, style: str) -> list[list[int]]:
    """Token ids of each text, with the beginning-of-sequence token exactly once if the tokenizer uses one.

    A chat template writes its special tokens itself, so the tokenizer must not add them again; the same holds for a
    text that already starts with the beginning-of-sequence token. An end-of-sequence token that the tokenizer appends
    is taken off: the response follows.
    """
    bos = getattr(tokenizer, "bos_token", None)
    eos_id = getattr(tokenizer, "eos_token_id", None)
    ids: list[list[int]] = []
    for start in range(0, len(texts), _BATCH):
        batch = list(texts[start : start + _BATCH])
        bare = [style == "chat" or bool(bos and text.startswith(bos)) for text in batch]
        with_special = iter(_encode([t for t, b in zip(batch, bare, strict=True) if not b], tokenizer, True))
        without = iter(_encode([t for t, b in zip(batch, bare, strict=True) if b], tokenizer, False))
        for is_bare in bare:
            row = next(without) if is_bare else next(with_special)
            if not is_bare and eos_id is not None and len(row) > 1 and row[-1] == eos_id:
                row = row[:-1]
            ids.append(row)
    return ids


def _encode(texts: list[str], tokenizer: Any, add_special_tokens: bool) -> list[list[int]]:
    if not texts:
        return []
    return [list(row) for row in tokenizer(texts, add_special_tokens=add_special_tokens)["input_ids"]]


def make_prompts(problems: Sequence[Problem], source: str, data: Data, tokenizer: Any) -> list[Prompt]:
    """Render and tokenise problems, in their order.

    Raises:
        DataError: contradictory settings (see ``resolve_style``), or a prompt without a single token.
    """
    style = resolve_style(data, tokenizer)
    texts = [render(problem, data, style, tokenizer) for problem in problems]
    prompts = []
    for problem, text, ids in zip(problems, texts, tokenize(texts, tokenizer, style), strict=True):
        if not ids:
            raise DataError(f"{problem.row}: the prompt has no tokens; its text is {text[:80]!r}")
        prompts.append(
            Prompt(
                id=content_id(problem.words),
                text=text,
                token_ids=np.asarray(ids, dtype=np.int64),
                problem=problem.problem,
                answer=problem.answer,
                source=source,
                extra=problem.extra,
            )
        )
    return prompts
