"""``dapo rollouts``: the responses that a run recorded, as examples for ``dapo sft``."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dapo.errors import DataError, RecipeError

if TYPE_CHECKING:
    from dapo.config.schema import Recipe
    from dapo.observe.run_folder import RunFolder

CORRECT = 1.0
"""Accuracy from which a response counts as correct."""
Format = Literal["prompt", "messages"]
_COLUMNS = ["step", "prompt_id", "response", "finish", "accuracy", "turns"]


def rollouts(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder; the run may be going on.")],
    correct: Annotated[
        bool, typer.Option("--correct", help="Only responses that are right and ended by themselves.")
    ] = False,
    form: Annotated[
        str, typer.Option("--format", help="prompt: {prompt, response}. messages: {messages}, for a chat template.")
    ] = "prompt",
    out: Annotated[Path | None, typer.Option("-o", "--out", metavar="FILE", help="Default: the screen.")] = None,
    per_prompt: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="At most so many of a problem, the newest ones.")
    ] = None,
    first: Annotated[int | None, typer.Option(metavar="STEP", help="Leave out what came before this step.")] = None,
    last: Annotated[int | None, typer.Option(metavar="STEP", help="Leave out what came after this step.")] = None,
) -> int:
    """Write a run's responses as JSON lines, equal ones once: `dapo sft RECIPE sft.train.0.path=FILE` imitates them."""
    if form not in ("prompt", "messages"):
        raise typer.BadParameter(f"{form!r} is neither prompt nor messages", param_hint="--format")
    if out is not None and out.exists():
        raise DataError(f"{out} exists already; give another name to --out")
    chosen = choose(run, correct=correct, form="messages" if form == "messages" else "prompt", first=first, last=last)
    lines = list(chosen.lines(per_prompt))
    text = "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines)
    if not lines:
        raise DataError(f"no response to write: {chosen.sentence(0)}. {chosen.next_move(run)}")
    if out is None:
        sys.stdout.write(text)
    else:
        from dapo.observe.jsonl import write_atomically

        write_atomically(out, text)
    print(chosen.sentence(len(lines)) + (f" -> {out}" if out else ""), file=sys.stderr)
    return 0


@dataclass(slots=True)
class Chosen:
    """Responses by problem, in the order of their steps."""

    of: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)  # prompt id -> response -> line
    seen: int = 0
    wrong: int = 0
    cut_off: int = 0  # of those: right, and ended by a limit
    unscored: int = 0  # of those
    unnamed: int = 0  # of problems whose text alone does not say what was asked

    def lines(self, per_prompt: int | None) -> Iterator[dict[str, Any]]:
        for responses in self.of.values():
            yield from list(responses.values())[-per_prompt if per_prompt else 0 :]

    def sentence(self, written: int) -> str:
        parts = [f"{written:,} of {self.seen:,} recorded responses, to {len(self.of):,} problems"]
        if self.wrong:
            parts.append(f"{self.wrong:,} were not right, not scored or cut off")
        if self.unnamed:
            parts.append(f"{self.unnamed:,} answer conversations or problems that prompts.parquet does not hold")
        return "; ".join(parts)

    def next_move(self, run: Path) -> str:
        """Return the next move if no response is left to write."""
        shown = shlex.quote(str(run))
        if self.cut_off:
            ones = "one was" if self.cut_off == 1 else "ones were"
            return f"{self.cut_off:,} right {ones} cut off at a limit: train with a larger rollout.max_response_tokens"
        if self.unnamed:
            return f"{shown}/rollouts holds them, with the conversations that they answer"
        why = "every one is without a score" if self.unscored == self.seen else "none was right"
        return (
            f"Look at them, as {why}: `dapo rollouts {shown}` writes all of them with their accuracy, `dapo report "
            f"{shown}` shows them with their rewards. A model that is never right needs examples from elsewhere first "
            "(docs/base_to_trained.md)"
        )


def choose(run: Path, *, correct: bool, form: Format, first: int | None = None, last: int | None = None) -> Chosen:
    """Read the responses of a run.

    Args:
        run: its folder.
        correct: only those that are right and ended by themselves.
        form: of the lines.
        first: step.
        last: step.

    Raises:
        RecipeError: there is no run, or its responses are no answers to a prompt.
        DataError: it recorded no responses of these steps.
    """
    from dapo.config.load import load_recipe
    from dapo.observe.prompts import read_problems
    from dapo.observe.rollouts import read_rollouts
    from dapo.observe.run_folder import RunFolder, step_files
    from dapo.types.batch import content_id

    folder = RunFolder.open(run)
    recipe = load_recipe(folder.resolved_recipe, of_a_run=True).recipe
    if recipe.run.stage == "sft":
        raise RecipeError(f"{run} is a supervised run and made no responses; give a run of `dapo train`")
    if recipe.environment.kind is not None and form == "prompt":
        raise RecipeError(f"{run} recorded episodes of several turns; write them as conversations: --format messages")
    problems = read_problems(folder.prompts)
    steps = step_files(folder.rollouts)
    files = [f for n, f in steps.items() if (first is None or n >= first) and (last is None or n <= last)]
    if not files:
        there = f"there are steps {min(steps)} to {max(steps)}" if steps else _none_yet(folder, recipe)
        raise DataError(f"{run} holds no recorded responses of these steps; {there}")
    chosen = Chosen()
    for file in files:
        for row in read_rollouts(file, _COLUMNS).to_pylist():
            chosen.seen += 1
            problem, *_ = problems.get(row["prompt_id"], (None,))
            if correct and not ((row["accuracy"] or 0.0) >= CORRECT and row["finish"] == "stop"):
                chosen.wrong += 1
                chosen.cut_off += (row["accuracy"] or 0.0) >= CORRECT
                chosen.unscored += row["accuracy"] is None
            elif problem is None or content_id(problem) != row["prompt_id"]:
                chosen.unnamed += 1
            else:
                line = _line(problem, row, recipe.data, form)
                extra = {} if correct else {"accuracy": row["accuracy"], "step": row["step"]}
                known = chosen.of.setdefault(row["prompt_id"], {})
                known.pop(row["response"], None)  # equal ones count as the newest
                known[row["response"]] = line | extra
    return chosen


def _none_yet(folder: RunFolder, recipe: Recipe) -> str:
    """Return why a run has no rollouts at all."""
    from dapo.observe.status import read_filling, read_status
    from dapo.observe.why import filling_line

    if recipe.logging.rollouts == "none":
        return "logging.rollouts is none"
    status = read_status(folder.status)
    if status is None or status.step:
        return "rollouts/ is empty"
    filling = read_filling(status.filling)
    told = "" if filling is None else f" {filling_line(filling)}"
    return f"they are written when a step ends, and its first step is not done.{told}"


def _line(problem: str, row: dict[str, Any], data: Any, form: Format) -> dict[str, Any]:
    """One example. Messages stand as the model saw them: with instruction and system message, without examples.

    An episode has a message for each turn.
    """
    if form == "prompt":
        return {"prompt": problem, "response": row["response"]}
    from dapo.data.chat import with_instruction
    from dapo.types.batch import MODEL

    system = [] if data.system_prompt is None else [{"role": "system", "content": data.system_prompt}]
    asked = {"role": "user", "content": with_instruction(problem, data)}
    answered = [{"role": "assistant", "content": row["response"]}]
    if row["turns"] is not None:
        said = [(turn["who"], turn["text"]) for turn in row["turns"]]
        answered = [{"role": who, "content": text} for who, text in said if text or who == MODEL]
    return {"messages": [*system, asked, *answered]}
