"""``dapo``: train, check, data, evaluate, export, report, view.

Exit codes: 0 done, 1 a failure while working, 2 refused input, 130 after Ctrl-C.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from dapo import __version__
from dapo.contracts.hooks import search_working_directory
from dapo.errors import DapoError, RecipeError, of_the_machine

INTERRUPTED = 130
UsageError: type[Exception] = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "UsageError")
"""click's own class, which newer releases of typer carry inside themselves."""

app = typer.Typer(
    name="dapo",
    help="Train language models with the DAPO recipe, on tasks whose answers a program can check.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Errors raised on purpose are told without a traceback."""
    search_working_directory()
    try:
        result = typer.main.get_command(app).main(
            list(sys.argv[1:] if arguments is None else arguments), prog_name="dapo", standalone_mode=False
        )
    except UsageError as error:
        error.show()  # type: ignore[attr-defined]
        return 2
    except DapoError as error:
        _tell(error)
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except (OSError, RuntimeError, MemoryError) as error:
        if isinstance(error, BrokenPipeError):  # `dapo check RECIPE | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        told = of_the_machine(error)
        if told is None:
            raise
        _tell(told)
        return told.exit_code
    return result if isinstance(result, int) else 0


def _tell(error: DapoError) -> None:
    from rich.console import Console
    from rich.text import Text

    from dapo.config.problems import visible
    from dapo.config.secrets import redact_text

    # It may quote a recipe, a data file or a response.
    said = "\n".join(visible(line) for line in redact_text(str(error)).split("\n"))
    Console(stderr=True, soft_wrap=True, highlight=False).print(
        Text("error: ", "bold red").append(said, "not bold default")
    )


def _version(show: bool) -> None:
    if show:
        print(f"dapo {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


RecipeArguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="RECIPE [KEY=VALUE]...", help="A YAML recipe, and settings that go on top: trainer.steps=20"
    ),
]


@app.command()
def train(
    arguments: RecipeArguments = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Go on with the run in this folder; then no RECIPE is given.")
    ] = None,
) -> int:
    """Train: `dapo train RECIPE [KEY=VALUE]...` or `dapo train --resume RUN [KEY=VALUE]...`."""
    if resume is not None:
        overrides = list(arguments or [])
        if overrides and "=" not in overrides[0]:
            raise RecipeError(
                f"--resume {resume} takes the recipe from the run folder, so `{overrides[0]}` has no place; "
                "give only key=value settings to change"
            )
        from dapo.config.resume import load_for_resume

        load_for_resume(resume, overrides)  # refuse what may not change before torch is imported
        import dapo.run

        return dapo.run.resume(resume, overrides)
    recipe, overrides = _recipe_and_overrides(arguments)
    from dapo.config import load_recipe

    loaded = load_recipe(recipe, overrides)
    import dapo.run

    return dapo.run.train(loaded)


@app.command()
def check(
    arguments: RecipeArguments = None,
    tries: Annotated[
        int,
        typer.Option(
            "--try", metavar="N", min=0, help="Also load the model, generate and score N groups, and time a step."
        ),
    ] = 0,
) -> int:
    """Everything about a run before it starts: data, rewards on gold and wrong answers, arithmetic, memory, files."""
    recipe, overrides = _recipe_and_overrides(arguments)
    from dapo.config import load_recipe

    loaded = load_recipe(recipe, overrides)
    from dapo.cli.check import check_run

    check_run(loaded, tries)
    return 0


@app.command()
def data(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder; the run may be going on.")],
    show: Annotated[
        str | None, typer.Option(metavar="KIND", help="List prompts: solved, hopeless, useful, unseen or all.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=0, help="Prompts to list of each kind.")] = None,
    step: Annotated[int | None, typer.Option(help="As of this checkpoint; default: the newest.")] = None,
) -> int:
    """What a run made of its prompts (solved, useful, hopeless, unseen) and where its generated tokens went."""
    kinds = ("solved", "hopeless", "useful", "unseen", "all")
    if show is not None and show not in kinds:
        raise typer.BadParameter(f"{show!r} is none of {', '.join(kinds)}", param_hint="--show")
    from dapo.cli.data import show_data

    show_data(run, show, limit, step)  # type: ignore[arg-type]
    return 0


@app.command()
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
    against: Annotated[
        str | None,
        typer.Option(metavar="MODEL_OR_RUN", help="Compare with it, problem by problem; or with a file of --out."),
    ] = None,
    against_step: Annotated[int | None, typer.Option(help="Checkpoint of --against; default: the newest.")] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write every answer there, a line of JSON each.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object on stdout; everything else goes to stderr.")
    ] = False,
) -> int:
    """Accuracy with its interval, pass@k, majority vote, lengths and truncation, per data set."""
    from dapo.cli.evaluate import evaluation_recipe, recipe_against

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
    if against_step is not None and against is None:
        raise typer.BadParameter("it needs --against RUN", param_hint="--against-step")
    answers = Path(against) if against is not None and Path(against).is_file() else None
    other = recipe_against(loaded.recipe, against) if against is not None and answers is None else None
    import dapo.run

    second = answers if other is None else dapo.run.Subject(*other, against_step)
    return dapo.run.evaluate(loaded, run, step, against=second, out=out, as_json=as_json)


@app.command()
def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder to write; it must not exist or be empty.")],
    step: Annotated[int | None, typer.Option(help="Checkpoint to export; default: the newest.")] = None,
) -> int:
    """Write a model folder that `AutoModelForCausalLM.from_pretrained` loads, with a model card."""
    from dapo.config.resume import RESOLVED

    if not (run / RESOLVED).is_file():
        raise RecipeError(f"{run} is not a run folder: it holds no {RESOLVED}")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RecipeError(f"{out} exists and is not empty; give a new folder")
    import dapo.run

    return dapo.run.export(run, out, step)


@app.command()
def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Run folders; they may be going on. Several are compared.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Default: RUN/report, or dapo-report here for several runs."),
    ] = None,
    budget_mb: Annotated[float, typer.Option(help="Most megabytes of report.html.")] = 10.0,
) -> int:
    """One HTML file that opens anywhere, the main pictures, and a trace for Perfetto."""
    from dapo.cli.report import report_runs

    report_runs(runs, out, budget_mb)
    return 0


@app.command()
def view(
    runs_folder: Annotated[
        Path, typer.Argument(metavar="RUNS_FOLDER", help="A folder of runs, such as runs; or one run.")
    ] = Path("runs"),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where it is taken, the next free one.")] = 6006,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    open_browser: Annotated[bool, typer.Option("--open/--no-open", help="Show the page in the browser.")] = False,
    expose: Annotated[
        bool, typer.Option("--expose", help="Allow a --host that others can reach. There is no password.")
    ] = False,
) -> int:
    """Runs in the browser, updating while they go on: a local, read-only server."""
    from dapo.cli.view import view as view_runs

    return view_runs(runs_folder, port, host, open_browser, expose)


def _recipe_and_overrides(arguments: Sequence[str] | None) -> tuple[str, list[str]]:
    if not arguments:
        raise typer.BadParameter("a recipe file is missing: for example recipes/quickstart.yaml", param_hint="RECIPE")
    first, *rest = arguments
    if "=" in first and not Path(first).exists():
        raise typer.BadParameter(f"the recipe file comes first, before `{first}`", param_hint="RECIPE")
    return first, rest
