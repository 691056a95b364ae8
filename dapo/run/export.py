"""``dapo export``: a checkpoint's weights as a folder that transformers loads."""

from __future__ import annotations

import importlib
import json
import logging
import re
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

from dapo.checkpoint.store import CheckpointStore, reading
from dapo.checkpoint.tree import as_damage, load_state
from dapo.config.check_sft import sft_source_name
from dapo.config.load import load_recipe
from dapo.config.schema import Recipe
from dapo.data.chat import with_instruction
from dapo.data.render import resolve_style
from dapo.errors import CheckpointError
from dapo.learner.checkpoint import load_weights
from dapo.learner.tensor_files import write_tensors
from dapo.models.adapter import CONFIG, TENSORS, adapter_config, adapter_tensors, merge_error, published
from dapo.models.builtin import is_builtin
from dapo.models.facts import facts_of
from dapo.models.loaded import LoadedModel
from dapo.models.quiet import quiet_transformers
from dapo.models.tokenizer import PROBE_TEXT
from dapo.observe.console import Console
from dapo.observe.evaluations import read_held_out
from dapo.observe.metrics import Row, read_metrics, series
from dapo.observe.run_folder import RunFolder, step_files
from dapo.observe.samples import read_samples
from dapo.observe.text import clean, interval, number, percent
from dapo.run.model import make_facts, make_model, with_folder
from dapo.run.sampling import stop_tokens
from dapo.types.model import ModelFacts, check_fingerprint

CARD = "README.md"
Style = Literal["chat", "template", "raw"]
_HUB = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_GENERIC = "PreTrainedTokenizerFast"
_HERE = re.compile(r"\s*(run\.(dir|name|if_exists)|checkpoint\.dir)\s")
"""Settings of a recipe that speak of the machine alone."""
NOTABLE_LOSS = 0.01
"""Share of an adapter's change that rounding may lose without a word; float32 loses about 1e-5."""


def export(
    run: Path, out: Path, step: int | None = None, *, adapter: bool = False, console: Console | None = None
) -> int:
    """Write checkpoint ``step`` (default: the newest) of a run to ``out``. Returns the exit code.

    ``console``: where it is reported; None: plain lines.
    ``adapter``: of a run with ``model.lora`` the adapter alone; otherwise it is merged into the model.

    Raises:
        CheckpointError: the adapter of a run that trained every parameter, or ``out`` cannot be made.
    """
    with nullcontext(console) if console is not None else Console("plain") as console:
        folder = RunFolder.open(run)
        if adapter and load_recipe(folder.resolved_recipe, of_a_run=True).recipe.model.lora.rank is None:
            raise CheckpointError(f"{run} trained every parameter and has no adapter: leave --adapter out")
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointError(f"{out} cannot be made: {error.strerror or error}; give another folder") from None
        recipe, saved, loaded = _load_trained(folder, step, console)
        if recipe.data.chat_template is not None:
            loaded.tokenizer.chat_template = recipe.data.chat_template
        if adapter:
            write_adapter(out, loaded)
        else:
            write_model(out, loaded)
            write_generation_config(out, recipe, facts_of(loaded))
            _say_merged(loaded, console)
        console.say(f"{saved} -> {out}")
        tokenizer = tokenizer_class(out, loaded)
        rows = card_rows(folder, _step(saved))
        difference = folder.difference.read_text(encoding="utf-8") if folder.difference.exists() else ""
        style = resolve_style(recipe.data, loaded.tokenizer)
        more = {"example": found} if (found := _example(recipe, folder)) else {}
        card = model_card(out.name, recipe, rows, _step(saved), difference, tokenizer, style, adapter=adapter, **more)
        (out / CARD).write_text(card, encoding="utf-8")
        if tokenizer != "AutoTokenizer":
            console.warn(
                "AutoTokenizer splits text otherwise than the tokenizer that this model was trained with: transformers "
                f'picks a class by the model type. Load it with {tokenizer}.from_pretrained("{out}"); the model card '
                "says so. A server that loads its tokenizer by AutoTokenizer gets other tokens: send it token ids"
            )
        if adapter:
            console.say(f'load it on top of {recipe.model.path} with PeftModel.from_pretrained(model, "{out}")')
        else:
            console.say(f'load it with AutoModelForCausalLM.from_pretrained("{out}")')
    return 0


def write_model(folder: Path, loaded: LoadedModel) -> None:
    """Write model, tokenizer and generation settings as an ordinary Hugging Face folder; an adapter is merged."""
    merged = {"state_dict": dict(published(loaded.model, aliases=True))} if loaded.adapter else {}
    with quiet_transformers():
        loaded.model.save_pretrained(folder, **merged)
    loaded.tokenizer.save_pretrained(folder)
    for tensors in folder.glob("*.safetensors"):  # safetensors makes its files the owner's alone
        shutil.copymode(folder / "config.json", tensors)


def write_adapter(folder: Path, loaded: LoadedModel) -> None:
    """Write the adapter and the tokenizer as a folder that PEFT loads on top of the model that was trained."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG).write_text(adapter_config(loaded.model), encoding="utf-8")
    write_tensors(folder / TENSORS, adapter_tensors(loaded.model))
    loaded.tokenizer.save_pretrained(folder)


def load_trained(run: Path, step: int | None = None) -> LoadedModel:
    """Return the model of checkpoint ``step`` (default: the newest) of a run.

    Raises:
        CheckpointError: there is none, it is damaged, or belongs to another model.
    """
    with Console("quiet") as console:
        return _load_trained(RunFolder.open(run), step, console)[2]


def _load_trained(folder: RunFolder, step: int | None, console: Console) -> tuple[Recipe, Path, LoadedModel]:
    recipe = load_recipe(folder.resolved_recipe, of_a_run=True).recipe
    saved = CheckpointStore(folder.checkpoints).path(step)
    here = with_folder(recipe, console.say)
    facts = make_facts(here, console)  # another model is refused before any weight of it is read
    with reading(saved):
        with as_damage(saved):
            check_fingerprint(load_state(saved)["fingerprint"], dict(facts.fingerprint), saved)
        loaded = make_model(here, console, facts)
        load_weights(saved / "learner", loaded)
    return recipe, saved, loaded


def _say_merged(loaded: LoadedModel, console: Console) -> None:
    """Print how much of an adapter is lost by merging it into weights of this type."""
    if loaded.adapter and (lost := merge_error(loaded.model)) >= NOTABLE_LOSS:
        console.warn(
            f"merging the adapter into weights in {loaded.fingerprint['dtype']} rounds {lost:.0%} of its change away: "
            "--adapter exports it as it was trained"
        )


def tokenizer_class(folder: Path, loaded: LoadedModel) -> str:
    """Return the class of transformers whose ``from_pretrained(folder)`` gives the tokenizer that training used.

    ``AutoTokenizer`` wherever it does; for some model types it takes a class that replaces what tokenizer.json says.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    texts = [PROBE_TEXT, " ".join(loaded.tokenizer.get_vocab()), *_chats(loaded.tokenizer)]
    expected = [loaded.tokenizer.encode(text) for text in texts]
    logging.getLogger("transformers").setLevel(logging.ERROR)  # its advice on tokenizers speaks of the old folder
    if [AutoTokenizer.from_pretrained(folder).encode(text) for text in texts] == expected:
        return "AutoTokenizer"
    generic = PreTrainedTokenizerFast.from_pretrained(folder)
    return _GENERIC if [generic.encode(text) for text in texts] == expected else type(loaded.tokenizer).__name__


def _chats(tokenizer: Any) -> list[str]:
    """Return a conversation as the tokenizer's template writes it, if it has a template."""
    if not getattr(tokenizer, "chat_template", None):
        return []
    messages = [{"role": "user", "content": PROBE_TEXT}]
    return [tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)]


def write_generation_config(folder: Path, recipe: Recipe, facts: ModelFacts) -> None:
    """Write how training sampled, and what ended a response, to generation_config.json beside the model's own."""
    path = folder / "generation_config.json"
    settings = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    settings |= {"do_sample": True, "temperature": recipe.rollout.temperature, "top_p": recipe.rollout.top_p}
    settings["top_k"] = recipe.rollout.top_k  # 0: all tokens; without it transformers samples from the best 50 alone
    settings |= {"eos_token_id": list(stop_tokens(recipe, facts)), "max_new_tokens": recipe.rollout.max_response_tokens}
    if recipe.rollout.stop:
        settings["stop_strings"] = list(recipe.rollout.stop)
    path.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _supervised(path: str) -> RunFolder | None:
    """Return the supervised run that left a model at ``path``; None for any other model."""
    run = RunFolder(Path(path).parent)
    return run if Path(path) == run.export and run.resolved_recipe.is_file() else None


def public_name(path: str) -> tuple[str, bool]:
    """Return a model's name without the folders of this machine, and whether the Hugging Face Hub knows it by that.

    Args:
        path: as ``model.path`` of a recipe.
    """
    if is_builtin(path) or (_HUB.fullmatch(path) and not Path(path).exists()):
        return path, not is_builtin(path)
    for part in Path(path).parts:  # the cache of the Hub
        if found := re.fullmatch(r"models--([\w.-]+)--([\w.-]+)", part):
            return f"{found[1]}/{found[2]}", True
    if run := _supervised(path):
        return public_name(load_recipe(run.resolved_recipe, of_a_run=True).recipe.model.path)
    try:
        said = json.loads((Path(path) / "config.json").read_text(encoding="utf-8")).get("_name_or_path")
    except (OSError, ValueError, AttributeError):
        said = None
    if isinstance(said, str) and _HUB.fullmatch(said):
        return said, True
    return Path(path).name, False


def model_card(
    name: str,
    recipe: Recipe,
    rows: list[Row],
    step: int,
    difference: str,
    tokenizer: str,
    style: Style = "raw",
    *,
    adapter: bool = False,
    example: str = "Write your problem here.",
) -> str:
    """README.md of an exported folder: what was trained, how, and with which result.

    Args:
        name: of the model.
        recipe: of the run.
        rows: of its metrics, up to ``step``.
        step: of the checkpoint.
        difference: the recipe against its preset, as in difference.txt.
        tokenizer: the class that loads the tokenizer as training used it.
        style: how prompts were made.
        adapter: the folder holds an adapter alone.
        example: a problem to ask.
    """
    base, public = public_name(recipe.model.path)
    base_line = f"base_model: {base}\n" if public else ""
    evaluated = [row for row in rows if row.get("validation/accuracy") is not None]
    first = f", after the supervised run {_inline(run.path.name)}," if (run := _supervised(recipe.model.path)) else ""
    library = "peft" if adapter else "transformers"
    parts = [
        f"---\nlibrary_name: {library}\npipeline_tag: text-generation\n{base_line}"
        "tags: [dapo, reinforcement-learning]\n---",
        f"# {_inline(name)}",
        f"{_inline(base)}{first} trained for {step} steps with dapo {importlib.import_module('dapo').__version__}: "
        + _how(recipe),
        "## Result",
        *(_result(evaluated) if evaluated else [_loss(rows) or _training(rows)]),
        "## Use",
        "```python\n"
        + (
            f"from peft import AutoPeftModelForCausalLM\nfrom transformers import {tokenizer}\n\n"
            f'model = AutoPeftModelForCausalLM.from_pretrained("{_inline(name, "")}")\n'
            if adapter
            else f"from transformers import AutoModelForCausalLM, {tokenizer}\n\n"
            f'model = AutoModelForCausalLM.from_pretrained("{_inline(name, "")}")\n'
        )
        + f'tokenizer = {tokenizer}.from_pretrained("{_inline(name, "")}")\n\n{_asking(recipe, style, example)}\n```',
        "Run it next to the model's folder, or replace the name by its path or its name on a hub.",
    ]
    if recipe.rollout.stop:
        parts.append("generation_config.json holds the stop strings, so `generate` needs `tokenizer=tokenizer`.")
    if recipe.data.few_shot or recipe.data.tools:
        parts.append("The prompts of training also held examples or tools: see `data` in the recipe below.")
    if tokenizer != "AutoTokenizer":
        parts.append(
            f"**Load the tokenizer with `{tokenizer}`.** `AutoTokenizer` takes another class for this type of model, "
            "which splits text otherwise than in training."
        )
    lines = [line for line in clean(difference).replace("```", "").strip().split("\n") if not _HERE.match(line)]
    parts += ["## Recipe", "```\n" + "\n".join(lines) + "\n```"]
    return "\n\n".join(parts) + "\n"


def _asking(recipe: Recipe, style: Style, example: str) -> str:
    """Return the lines of Python that ask the model as training did: template, system prompt, prefix, stop strings."""
    data, rollout = recipe.data, recipe.rollout
    lines = [f"problem = {_literal(example)}"]
    problem = f"problem + {_literal(with_instruction('', data))}" if data.instruction else "problem"
    if style == "chat":
        system = "" if data.system_prompt is None else _message("system", _literal(data.system_prompt)) + ", "
        lines.append(f"messages = [{system}{_message('user', problem)}]")
        options = "".join(f", {key}={_literal(value)}" for key, value in data.chat_template_kwargs.items())
        lines.append(
            f"prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True{options})"
        )
    elif style == "template" and data.prompt_template is not None:
        lines.append(f'prompt = {_literal(data.prompt_template)}.replace("{{problem}}", {problem})')
    else:
        lines.append(f"prompt = {problem}")
    if data.response_prefix:
        lines.append(f"prompt += {_literal(data.response_prefix)}")
    stop = f", stop_strings={_literal(list(rollout.stop))}, tokenizer=tokenizer" if rollout.stop else ""
    drawn = f"do_sample=True, temperature={rollout.temperature:g}, top_p={rollout.top_p:g}, top_k={rollout.top_k}"
    lines += [
        f'inputs = tokenizer(prompt, add_special_tokens={style != "chat"}, return_tensors="pt")',
        f"tokens = model.generate(\n    **inputs, max_new_tokens={rollout.max_response_tokens}, {drawn}{stop}\n)",
        'print(tokenizer.decode(tokens[0, inputs["input_ids"].shape[1]:], skip_special_tokens=True))',
    ]
    return "\n".join(lines)


def _example(recipe: Recipe, folder: RunFolder) -> str:
    """Return a held-out problem of a built-in task, so that no user's data are published; "" without one."""
    if not recipe.data.validation or recipe.data.validation[0].task is None:
        return ""
    return next((sample.problem for sample in read_samples(folder.samples) if sample.problem), "")


def _message(role: str, content: str) -> str:
    return f'{{"role": "{role}", "content": {content}}}'


def _literal(value: Any) -> str:
    """Return a value as Python writes it; a backtick in it ends no block of code."""
    return repr(value).replace("`", r"\x60")


def _how(recipe: Recipe) -> str:
    """Return the contents of a step in words."""
    if recipe.run.stage == "sft":
        return (
            f"supervised, {recipe.sft.batch_size} examples a step, learning rate {recipe.sft.learning_rate:g}, of "
            f"{', '.join(_inline(sft_source_name(source)) for source in recipe.sft.train)}."
        )
    return (
        f"{recipe.rollout.prompts_per_step} prompts a step, {recipe.rollout.group_size} responses a prompt, preset "
        f"{recipe.preset}. Rewards: {', '.join(_inline(f'{r.name} ({r.kind})') for r in recipe.rewards)}."
    )


def card_rows(folder: RunFolder, step: int) -> list[Row]:
    """Return a run's metrics up to a step; an evaluation that they lost is counted again from its responses."""
    rows = {int(row["step"] or 0): row for row in read_metrics(folder.metrics)}
    for at, file in step_files(folder.evaluations).items():
        row = rows.setdefault(at, {"step": at})
        if row.get("validation/accuracy") is None and (held := read_held_out(file)) and held.known:
            row |= {"validation/accuracy": held.accuracy, "validation/problems": len(held.problems)}
    return [rows[at] for at in sorted(rows) if at <= step]


def _training(rows: list[Row]) -> str:
    """Return the accuracy of training responses, for a run without a held-out result."""
    steps, accuracies = series(rows, "reward/accuracy")
    shown = [f"{percent(value)} in step {step}" for step, value in zip(steps, accuracies, strict=True)]
    training = f" Accuracy of its training responses: {', '.join({shown[0]: 0, shown[-1]: 0})}." if shown else ""
    return f"It was not evaluated on held-out problems.{training}"


def _loss(rows: list[Row]) -> str:
    """Return the held-out loss of a supervised run; "" without one."""
    steps, losses = series(rows, "validation/loss")
    if not losses:
        return ""
    return f"Held-out loss, nats a token: {losses[0]:.4f} at step {steps[0]}, {losses[-1]:.4f} at step {steps[-1]}."


def _result(evaluated: list[Row]) -> list[str]:
    """Return the first and the last evaluation as a table; unscored responses are named."""
    shown = evaluated[:1] + (evaluated[-1:] if len(evaluated) > 1 else [])
    heads = [f"step {row['step']}" for row in shown]
    lines = [f"| held-out | {' | '.join(heads)} |", f"| --- {'| --- ' * len(heads)}|"]
    for title, key, form in (
        ("accuracy, sampled", "accuracy", percent),
        ("accuracy, greedy", "greedy_accuracy", percent),
        ("response length", "length_mean", number),
        ("truncated", "truncated_share", percent),
        ("unscored responses", "unscored", lambda count: f"{count or 0:,.0f}"),
    ):
        values = [row.get(f"validation/{key}") for row in shown]
        if not any(value is not None for value in values) or (key == "unscored" and not any(values)):
            continue
        cells = [form(value) for value in values]
        if key == "accuracy":
            ends = [interval(row.get("validation/accuracy_low"), row.get("validation/accuracy_high")) for row in shown]
            cells = [f"{cell} ({end})" if end else cell for cell, end in zip(cells, ends, strict=True)]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    problems = shown[-1].get("validation/problems")
    about = f" over {problems:,.0f} problems" if problems else ""
    return ["\n".join(lines), f"{'In brackets: the 95 % interval' if '(' in lines[2] else 'Sampled'}{about}."]


def _inline(text: str, quote: str = "`") -> str:
    """Text of the user's inside a line of Markdown."""
    return f"{quote}{clean(text, newlines=False).replace('`', '').replace(chr(34), '')}{quote}"


def _step(saved: Path) -> int:
    return int(saved.name.rpartition("_")[2])
