"""From problems to prompts: the text the model sees, and its tokens.

The tokenizer is any object with the ``__call__`` and ``apply_chat_template`` of transformers' tokenizers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from dapo.config.check_data import CHAT_ONLY
from dapo.config.schema import Data
from dapo.data.chat import check_variables, conversation, has_template, render_chat, with_instruction
from dapo.data.encode import encode
from dapo.data.formats import RawProblem
from dapo.errors import DataError
from dapo.types.batch import Prompt, content_id

PLACEHOLDER = "{problem}"
SHOT_END = "\n\n"
"""Between two examples, and before the problem, where prompts are made by a template."""
_HEAD, _TAIL = 400, 240  # characters of a prompt that are shown


def resolve_style(data: Data, tokenizer: Any) -> Literal["chat", "template", "raw"]:
    """Which way prompts are made, with ``auto`` decided and what contradicts the tokenizer refused.

    Raises:
        DataError: a chat without a chat template, a setting without effect.
    """
    has_chat = has_template(data, tokenizer)
    style = data.prompt
    if style == "auto":
        style = "template" if data.prompt_template is not None else "chat" if has_chat else "raw"
    if style == "chat":
        if not has_chat:
            raise DataError(
                "`data.prompt: chat`, but the tokenizer has no chat template; use an instruction-tuned model's "
                "tokenizer, or set `data.chat_template` or `data.prompt_template`"
            )
        check_variables(data, tokenizer)
    for key in CHAT_ONLY:
        if style != "chat" and getattr(data, key):
            raise DataError(f"`data.{key}` needs `data.prompt: chat`, and prompts are made by `{style}`")
    if style == "raw" and data.few_shot:
        raise DataError(
            "`data.few_shot` needs `data.prompt_template`, which says how an example looks, or a chat template; "
            "prompts are made by `raw`"
        )
    return style


def render(problem: RawProblem, data: Data, style: str, tokenizer: Any, *, ask: bool = True) -> str:
    """Return the text of one prompt, the beginning of the response included; ``ask``: see ``make_prompts``.

    Raises:
        DataError: the chat template refuses the messages (some accept no system message), or the problem is a
            conversation and prompts are not made by a chat template.
    """
    text, begun = with_instruction(problem.problem, data), data.response_prefix or ""
    if style == "chat":
        return render_chat(problem, text, data, tokenizer, ask=ask) + begun
    if problem.messages:
        roles = [message["role"] for message in problem.messages]
        raise DataError(
            f"{problem.row}: messages of {roles} need `data.prompt: chat` (and a tokenizer with a chat template), and "
            f"prompts are made by `{style}`; map `problem` to a field that holds text"
        )
    if style == "raw":
        return text + begun
    # not str.format: problems and templates are full of LaTeX braces
    template = data.prompt_template or PLACEHOLDER
    shots = [
        template.replace(PLACEHOLDER, with_instruction(shot.problem, data)) + shot.response + SHOT_END
        for shot in data.few_shot
    ]
    return "".join(shots) + template.replace(PLACEHOLDER, text) + begun


def tokenize(texts: Sequence[str], tokenizer: Any, style: str) -> list[list[int]]:
    """Token ids of each text, with the beginning-of-sequence token exactly once if the tokenizer uses one.

    A chat template writes its special tokens itself, so the tokenizer must not add them again; the same holds for a
    text that already starts with the beginning-of-sequence token. An end-of-sequence token that the tokenizer appends
    is taken off: the response follows.
    """
    bos = getattr(tokenizer, "bos_token", None)
    eos_id = getattr(tokenizer, "eos_token_id", None)
    ids: list[list[int]] = []
    bare = [style == "chat" or bool(bos and text.startswith(bos)) for text in texts]
    with_special = iter(encode([t for t, b in zip(texts, bare, strict=True) if not b], tokenizer, special=True))
    without = iter(encode([t for t, b in zip(texts, bare, strict=True) if b], tokenizer))
    for is_bare in bare:
        row = next(without) if is_bare else next(with_special)
        if not is_bare and eos_id is not None and len(row) > 1 and row[-1] == eos_id:
            row = row[:-1]
        ids.append(row)
    return ids


def make_prompts(
    problems: Sequence[RawProblem],
    source: str,
    data: Data,
    tokenizer: Any,
    *,
    ask: bool = True,
    keep_chat: bool = False,
) -> list[Prompt]:
    """Render and tokenise problems, in their order.

    Args:
        problems: what is asked.
        source: name of the data.
        data: the recipe's section.
        tokenizer: of the model.
        ask: a chat template asks for the model's turn at the end; False: an environment speaks first.
        keep_chat: prompts made by a chat template hold their messages (``Prompt.chat``).

    Raises:
        DataError: contradictory settings (see ``resolve_style``), or a prompt without a single token.
    """
    style = resolve_style(data, tokenizer)
    texts = [render(problem, data, style, tokenizer, ask=ask) for problem in problems]
    prompts = []
    for problem, text, ids in zip(problems, texts, tokenize(texts, tokenizer, style), strict=True):
        if not ids:
            raise DataError(f"{problem.row}: the prompt has no tokens; its text is {text[:80]!r}")
        if len(ids) > 1 and ids[0] == ids[1] == getattr(tokenizer, "bos_token_id", None):
            raise DataError(
                f"{problem.row}: the prompt begins with the beginning-of-sequence token twice: {text[:80]!r}; the chat "
                "template writes it once too often (`data.chat_template` gives another)"
            )
        prompts.append(
            Prompt(
                id=content_id(problem.words),
                text=text,
                token_ids=np.asarray(ids, dtype=np.int64),
                problem=problem.problem,
                answer=problem.answer,
                source=source,
                extra=problem.extra,
                chat=conversation(problem, data) if keep_chat and style == "chat" else None,
                messages=problem.messages or ({"role": "user", "content": problem.problem},) * problem.conversational,
            )
        )
    return prompts


def seen_lines(prompt: Prompt, tokenizer: Any) -> list[str]:
    """Return what the model sees of a prompt, token by token, and what a person reads later."""
    text = str(tokenizer.decode(prompt.token_ids.tolist(), skip_special_tokens=False))
    shown = repr(text)
    if len(text) > _HEAD + _TAIL:
        left = len(text) - _HEAD - _TAIL
        shown = f"{text[:_HEAD]!r} ... {left:,} characters ... {text[-_TAIL:]!r}"
    lines = [f"the model sees {len(prompt.token_ids)} tokens: {shown}"]
    problem = prompt.problem[:_TAIL]
    lines.append(f"the problem, as samples and the report show it: {problem!r}{'...' * (problem != prompt.problem)}")
    return lines
