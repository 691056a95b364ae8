"""The commands about models that runs made: ``dapo evaluate`` and ``dapo export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dapo.cli.arguments import AsJson
from dapo.errors import RecipeError

Best = Annotated[bool, typer.Option("--best", help="The checkpoint that is best by checkpoint.best.")]


def _best_or(step: int | None, best: bool, run: Path | None) -> int | None:
    """Return the step of ``--best``, or that of ``--step``."""
    if step is not None and run is None:
        raise typer.BadParameter("it names a checkpoint of a run, and this is a model", param_hint="--step")
    if not best:
        return step
    if step is not None:
        raise typer.BadParameter("it names a checkpoint, and so does --step: give one of them", param_hint="--best")
    if run is None:
        raise typer.BadParameter("it needs a run, and this is a model", param_hint="--best")
    from dapo.checkpoint.store import CheckpointStore
    from dapo.observe.run_folder import RunFolder

    return CheckpointStore(RunFolder.open(run).checkpoints).best_step()


def evaluate(
    model_or_run: Annotated[
        str, typer.Argument(metavar="MODEL_OR_RUN", help="A run folder, model folder or hub name.")
    ],
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Recipe settings, such as rewards.0.kind=exact."),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(help="A file, `hub:owner/name` or `task:NAME`; again for a further set. A run has its own."),
    ] = None,
    samples: Annotated[
        int | None, typer.Option("--samples", "-k", min=1, help="Sampled responses per problem.")
    ] = None,
    greedy: Annotated[bool | None, typer.Option("--greedy/--no-greedy", help="Also one greedy response each.")] = None,
    temperature: Annotated[float | None, typer.Option(help="Of the sampled responses.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Of the sampled responses.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Longest response.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Problems per data set.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of the sampled responses.")] = None,
    step: Annotated[int | None, typer.Option(help="Checkpoint of a run; default: the newest.")] = None,
    best: Best = False,
    against: Annotated[
        str | None,
        typer.Option(metavar="MODEL_OR_RUN", help="Compare with it, problem by problem; or with a file of --out."),
    ] = None,
    against_step: Annotated[int | None, typer.Option(help="Checkpoint of --against; default: the newest.")] = None,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="FILE", help="Write every answer there, a line of JSON each."),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Accuracy with its interval, pass@k, majority vote, lengths and truncation, per data set."""
    from dapo.cli.evaluate_recipe import evaluation_recipe, recipe_against

    options = {
        "validation.samples": samples,
        "validation.greedy": greedy,
        "validation.temperature": temperature,
        "validation.top_p": top_p,
        "validation.max_response_tokens": max_tokens,
        "validation.limit": limit,
        "run.seed": seed,
    }
    loaded, run = evaluation_recipe(model_or_run, data or [], options, settings or [])
    step = _best_or(step, best, run)
    if against_step is not None and against is None:
        raise typer.BadParameter("it needs --against RUN", param_hint="--against-step")
    answers = Path(against) if against is not None and Path(against).is_file() else None
    other = recipe_against(loaded.recipe, against) if against is not None and answers is None else None
    if against_step is not None and (other is None or other[1] is None):
        raise typer.BadParameter(f"it names a checkpoint of a run, and {against} is none", param_hint="--against-step")
    import dapo.run

    second = answers if other is None else dapo.run.Subject(*other, against_step)
    return dapo.run.evaluate(loaded, run, step, against=second, out=out, as_json=as_json)


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    folder: Annotated[
        Path | None, typer.Argument(metavar="OUT", help="The folder to write; it must not exist or be empty.")
    ] = None,
    option: Annotated[Path | None, typer.Option("-o", "--out", metavar="OUT", help="The same as OUT.")] = None,
    step: Annotated[int | None, typer.Option(help="Checkpoint to export; default: the newest.")] = None,
    best: Best = False,
    adapter: Annotated[
        bool, typer.Option("--adapter", help="Of a run with model.lora: the adapter alone, not merged into the model.")
    ] = False,
) -> int:
    """Write a model folder that `AutoModelForCausalLM.from_pretrained` loads, with a model card."""
    from dapo.config.resume import no_run
    from dapo.config.yaml_files import RESOLVED

    out = folder or option
    if out is None or (folder and option):
        wrong = "one folder to write is needed" if out is None else f"two folders to write, {folder} and {option}"
        raise typer.BadParameter(f"{wrong}: dapo export RUN OUT", param_hint="OUT")
    if not (run / RESOLVED).is_file():
        raise RecipeError(no_run(run))
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RecipeError(f"{out} exists and is not empty; give a new folder")
    step = _best_or(step, best, run)
    import dapo.run

    return dapo.run.export(run, out, step, adapter=adapter)
