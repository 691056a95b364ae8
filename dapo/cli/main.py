"""``dapo``: train, sft, launch, check, recipes, init, import, explain, data, evaluate, export, rollouts, report, view.

Exit codes: 0 done, 1 a failure while working, 2 refused input, 3 (`dapo check`) nothing wrong with the recipe and it
would not start on this machine, 75 saved at trainer.max_hours or where the cluster was lost, 130 after Ctrl-C, 143
after SIGTERM where no step was under way.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from typer.core import TyperGroup

from dapo import __version__
from dapo.cli.arguments import RecipeArguments, ResumeOption, only_overrides, pages, recipe_and_overrides
from dapo.cli.completion import complete_key, complete_name
from dapo.cli.errors import tell_error
from dapo.cli.importing import import_recipe
from dapo.cli.launch import launch
from dapo.cli.models import evaluate, export
from dapo.cli.rollouts import rollouts
from dapo.contracts.hooks import search_working_directory
from dapo.errors import DapoError, RecipeError, Terminated, of_the_machine

INTERRUPTED, TERMINATED = 130, 143
UsageError: type[Exception] = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "UsageError")
"""click's own class, which newer releases of typer carry inside themselves."""


class _Stopped(Exception):
    """By a signal, while a command worked. Typer would make a silent exit code of a KeyboardInterrupt, or an Abort."""


class _Commands(TyperGroup):
    def invoke(self, ctx: typer.Context) -> object:  # type: ignore[override]
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise _Stopped from error


app = typer.Typer(
    cls=_Commands,
    name="dapo",
    help="Train language models with the DAPO recipe, on tasks whose answers a program can check.",
    epilog=pages("README.md", "docs/tutorial.md", "docs/configuration.md"),
    no_args_is_help=True,
    add_completion=True,
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
        _tell_of_flag(str(getattr(error, "option_name", "")))
        return 2
    except DapoError as error:
        tell_error(error)
        return error.exit_code
    except (_Stopped, KeyboardInterrupt, typer.Abort) as error:
        terminated = isinstance(error.__cause__, Terminated)
        print("ended by SIGTERM" if terminated else "interrupted", file=sys.stderr)
        return TERMINATED if terminated else INTERRUPTED
    except (OSError, RuntimeError, MemoryError) as error:
        if isinstance(error, BrokenPipeError):  # `dapo check RECIPE | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        told = of_the_machine(error)
        if told is None:
            raise
        tell_error(told)
        return told.exit_code
    return result if isinstance(result, int) else 0


def _tell_of_flag(flag: str) -> None:
    """A flag that is another trainer's key, or a setting of ours, is answered with what to write."""
    from dapo.config.peers import peer_hint
    from dapo.config.problems import nearest

    if hint := peer_hint(flag):
        print(f"{hint}. Settings are written KEY=VALUE here; whole commands: dapo import SCRIPT", file=sys.stderr)
    elif flag.startswith("--") and (near := nearest(flag[2:].replace("-", "_"))):
        meant = " or ".join(f"`{key}=VALUE`" for key in near)
        print(f"Settings are written KEY=VALUE here: did you mean {meant}?", file=sys.stderr)


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


app.command("import", epilog=pages("docs/import.md", "docs/peers.md"))(import_recipe)
app.command(epilog=pages("docs/scaling.md", "docs/configuration.md"))(launch)


@app.command(epilog=pages("docs/tutorial.md", "docs/configuration.md"))
def train(arguments: RecipeArguments = None, resume: ResumeOption = None) -> int:
    """Train: `dapo train RECIPE [KEY=VALUE]...` or `dapo train --resume RUN [KEY=VALUE]...`."""
    if resume is not None:
        overrides = only_overrides(resume, arguments)
        from dapo.config.resume import load_for_resume

        load_for_resume(resume, overrides)  # refuse what may not change before torch is imported
        import dapo.run

        return dapo.run.resume(resume, overrides)
    return _train(arguments)


def _train(arguments: Sequence[str] | None, *, sft: bool = False) -> int:
    recipe, overrides = recipe_and_overrides(arguments)
    from dapo.config import load_recipe

    loaded = load_recipe(recipe, overrides, sft=sft)  # refused before torch is imported
    import dapo.run

    return dapo.run.train(loaded)


@app.command(epilog=pages("docs/base_to_trained.md", "docs/configuration.md"))
def sft(arguments: RecipeArguments = None, resume: ResumeOption = None) -> int:
    """A supervised start by the recipe's section `sft`: `dapo sft RECIPE [KEY=VALUE]...` makes the run NAME-sft."""
    if resume is not None:
        return train(arguments, resume)  # a run knows what it does
    return _train(arguments, sft=True)


@app.command(epilog=pages("docs/tutorial.md", "docs/data_and_rewards.md"))
def check(
    arguments: RecipeArguments = None,
    tries: Annotated[
        int,
        typer.Option(
            "--try", metavar="N", min=0, help="Also load the model, generate and score N groups, and time a step."
        ),
    ] = 0,
    supervised: Annotated[
        bool, typer.Option("--sft", help="Of `dapo sft RECIPE`: examples instead of rewards.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Also show what does not concern this recipe.")
    ] = False,
) -> int:
    """Say whether a recipe is good before it runs: data, rewards on gold and wrong answers, memory, time, files."""
    recipe, overrides = recipe_and_overrides(arguments)
    from dapo.config import load_recipe

    loaded = load_recipe(recipe, overrides, sft=supervised)
    from dapo.cli.check import look_at_run
    from dapo.cli.check_screen import print_check
    from dapo.cli.check_sft import look_at_sft_run

    if loaded.recipe.run.stage == "sft":
        return print_check(loaded, look_at_sft_run, command="dapo sft", tried=False, verbose=verbose)
    look = partial(look_at_run, tries=tries)
    return print_check(loaded, look, command="dapo train", tried=tries > 0, verbose=verbose)


@app.command(epilog=pages("README.md", "docs/tutorial.md"))
def recipes(
    show: Annotated[
        str | None, typer.Option(metavar="NAME", help="Print this recipe.", autocompletion=complete_name)
    ] = None,
    copy: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Copy it here, with the files that it names.", autocompletion=complete_name),
    ] = None,
) -> int:
    """The recipes that come with the package: `dapo train quickstart` runs one, `--copy NAME` makes it yours."""
    from dapo.cli.recipes import copy_recipe, list_recipes, show_recipe

    if show is not None:
        show_recipe(show)
    if copy is not None:
        copy_recipe(copy, Path())
    if show is None and copy is None:
        list_recipes()
    return 0


@app.command(epilog=pages("docs/tutorial.md", "docs/data_and_rewards.md"))
def init(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Writes NAME.yaml; also the run's name.")] = "mine",
    model: Annotated[str | None, typer.Option(help="A Hugging Face folder or hub name.")] = None,
    data: Annotated[str | None, typer.Option(metavar="FILE", help="Training problems, or `hub:owner/name`.")] = None,
    validation: Annotated[str | None, typer.Option(metavar="FILE", help="Held-out problems.")] = None,
    problem: Annotated[str | None, typer.Option(metavar="COLUMN", help="Holds the problem; default: found.")] = None,
    answer: Annotated[str | None, typer.Option(metavar="COLUMN", help="Holds the gold answer; default: found.")] = None,
    reward: Annotated[
        str | None, typer.Option(help="math, exact, or package.module:function; default: by the answers.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda; default: what is here.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Longest response.")] = None,
    steps: Annotated[int, typer.Option(min=1, help="Training steps.")] = 100,
    force: Annotated[bool, typer.Option("--force", help="Write over NAME.yaml.")] = False,
) -> int:
    """Write a commented recipe for your model, data and machine. What no flag says is asked for in a terminal."""
    from dapo.cli.init import Wanted, checked_reward, needs, write_recipe

    if sys.stdin.isatty():
        model = model or typer.prompt("Model (a Hugging Face folder or hub name)")
        if data is None:
            data = typer.prompt("Training data (a file of problems with answers, or hub:owner/name)")
            validation = (
                validation or typer.prompt("Held-out data (empty: none)", default="", show_default=False) or None
            )
    needs([("--model", model), ("--data", data)])
    assert model is not None
    assert data is not None
    stem = name.removesuffix(".yaml")
    wanted = Wanted(
        Path(stem).name, model, data, validation, problem, answer, checked_reward(reward), device, max_tokens, steps
    )
    for line in write_recipe(wanted, Path(f"{stem}.yaml"), force=force):
        print(line)
    print(f"wrote {stem}.yaml. Look at it with: dapo check {stem}.yaml")
    return 0


@app.command(epilog=pages("docs/configuration.md", "docs/metrics.md", "docs/peers.md"))
def explain(
    keys: Annotated[
        list[str],
        typer.Argument(
            metavar="KEY...",
            help="A setting, a section, a metric, or another trainer's key.",
            autocompletion=complete_key,
        ),
    ],
) -> int:
    """What a key means, its default, the paper's section, other trainers' names for it, and the page."""
    from dapo.config.explain import explain as lines_about

    known, unknown = [], []
    for key in keys:
        try:
            known.append("\n".join(lines_about(key)))
        except RecipeError as error:
            unknown.append(str(error))
    if known:
        print("\n\n".join(known))
    if unknown:
        raise RecipeError("\n".join(unknown))
    return 0


@app.command(epilog=pages("docs/dynamic_sampling.md"))
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


app.command(epilog=pages("docs/tutorial.md", "docs/algorithm.md section 7"))(evaluate)
app.command(epilog=pages("docs/tutorial.md"))(export)
app.command(epilog=pages("docs/base_to_trained.md"))(rollouts)


@app.command(epilog=pages("docs/reading_a_run.md"))
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


@app.command(epilog=pages("docs/viewing.md", "docs/reading_a_run.md"))
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
