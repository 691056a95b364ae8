"""The commands of ``dapo``, in the groups and the order of its help.

Exit codes: 0 done, 1 a failure while working, 2 refused input, 3 (`dapo check`) nothing wrong with the recipe and it
would not start on this machine, 75 saved at trainer.max_hours or where the cluster was lost, 130 after Ctrl-C, 143
after SIGTERM where no step was under way.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from typer.core import TyperCommand, TyperGroup

from dapo import __version__
from dapo.cli.arguments import AsJson, RecipeArguments, ResumeOption, only_overrides, pages, recipe_and_overrides
from dapo.cli.compare import compare
from dapo.cli.completion import complete_key, complete_name
from dapo.cli.error_lines import tell_error
from dapo.cli.importing import import_recipe
from dapo.cli.launch import launch
from dapo.cli.models import evaluate, export
from dapo.cli.rollouts import rollouts
from dapo.cli.view import PORT
from dapo.errors import DapoError, RecipeError, Terminated, of_the_machine
from dapo.hooks import search_working_directory
from dapo.links import addressed

INTERRUPTED, TERMINATED = 130, 143
UsageError: type[Exception] = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "UsageError")
"""click's own class, which newer releases of typer carry inside themselves."""


class _Stopped(Exception):
    """By a signal, while a command worked. Typer would make a silent exit code of a KeyboardInterrupt, or an Abort."""


_START, _TRAIN, _LOOK, _USE = "Start", "Train", "Look", "Use"
_RECIPE = "RECIPE [KEY=VALUE ...]"
_COMMANDS = {
    "init": (_START, "NAME --model MODEL --data FILE", "own_data data"),
    "recipes": (_START, "[--show NAME | --copy NAME]", "tutorial"),
    "check": (_START, _RECIPE, "own_data data"),
    "explain": (_START, "KEY ...", "configuration metrics peers"),
    "import": (_START, "FILE [-o RECIPE]", "import peers"),
    "train": (_TRAIN, _RECIPE, "tutorial configuration"),
    "sft": (_TRAIN, _RECIPE, "base_to_trained configuration"),
    "launch": (_TRAIN, _RECIPE, "slurm configuration"),
    "compare": (_LOOK, "RUN ... [--by KEY] [--at tokens]", "reading_a_run"),
    "report": (_LOOK, "RUN ... [-o FOLDER]", "reading_a_run warnings"),
    "view": (_LOOK, "[RUNS]", "reading_a_run warnings"),
    "data": (_LOOK, "RUN", "dynamic_sampling"),
    "rollouts": (_LOOK, "RUN ... [-o FILE]", "base_to_trained"),
    "evaluate": (_USE, "MODEL_OR_RUN [KEY=VALUE ...]", "tutorial algorithm"),
    "export": (_USE, "RUN OUT", "publish"),
}
"""Of each command, in the order of the help: its group, what follows its name in its usage line, and its pages."""


class _Command(TyperCommand):
    def collect_usage_pieces(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]
        return [_COMMANDS[self.name or ""][1], "[OPTIONS]"]


class _Commands(TyperGroup):
    def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]
        return list(_COMMANDS)

    def collect_usage_pieces(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]
        return ["COMMAND ..."]

    def invoke(self, ctx: typer.Context) -> object:  # type: ignore[override]
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise _Stopped from error


app = typer.Typer(
    cls=_Commands,
    name="dapo",
    help="Train language models with the DAPO recipe, on tasks whose answers a program can check.",
    epilog=pages("tutorial", "cli", "configuration"),
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Errors raised on purpose are printed without a traceback."""
    search_working_directory()
    try:
        given = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
        result = typer.main.get_command(app).main(given, prog_name="dapo", standalone_mode=False)
    except UsageError as error:
        tell_error(_usage_error(error))
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


def _usage_error(error: Exception) -> RecipeError:
    """Return what is wrong with the words of a command line, in the voice of every other error, with the next move."""
    said = error.format_message().rstrip(".")  # type: ignore[attr-defined]
    context = getattr(error, "ctx", None)
    command = "dapo" if context is None else context.command_path
    lines = [f"{said[:1].lower()}{said[1:]}", f"`{command} --help` shows what it takes."]
    flag = str(getattr(error, "option_name", ""))
    if hint := _of_flag(flag):
        lines.insert(1, hint)
    return RecipeError("\n".join(lines))


def _of_flag(flag: str) -> str:
    """Return what to write in place of a flag that is another trainer's key, or a setting of ours; "" for neither."""
    from dapo.config.faults import nearest
    from dapo.config.peer_names import peer_hint

    if hint := peer_hint(flag):
        return f"{hint}. Settings are written KEY=VALUE here; whole commands: dapo import SCRIPT"
    if flag.startswith("--") and (near := nearest(flag[2:].replace("-", "_"))):
        meant = " or ".join(f"`{key}=VALUE`" for key in near)
        return f"Settings are written KEY=VALUE here: did you mean {meant}?"
    return ""


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


def _command(name: str) -> Callable[[Callable[..., int]], Callable[..., int]]:
    group, _, names = _COMMANDS[name]
    return app.command(name, cls=_Command, rich_help_panel=group, epilog=pages(*names.split()))


_command("import")(import_recipe)
_command("launch")(launch)


@_command("train")
def train(arguments: RecipeArguments = None, resume: ResumeOption = None) -> int:
    """Train a model by a recipe; `dapo train --resume RUN` goes on with a run."""
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


@_command("sft")
def sft(arguments: RecipeArguments = None, resume: ResumeOption = None) -> int:
    """Train a model on examples, by the recipe's section `sft`; the run is called NAME-sft."""
    if resume is not None:
        return train(arguments, resume)  # a run knows what it does
    return _train(arguments, sft=True)


@_command("check")
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
    as_json: AsJson = False,
) -> int:
    """Say whether a recipe is good before it runs: data, rewards on gold and wrong answers, memory, time, files."""
    recipe, overrides = recipe_and_overrides(arguments)
    from dapo.cli.check_screen import Checked, Sections, check_of, print_check, print_object
    from dapo.config import load_recipe

    try:
        loaded = load_recipe(recipe, overrides, sft=supervised)
    except DapoError as error:
        if as_json:
            print_object(Checked(recipe, "", Sections(), error=error))
        raise
    from dapo.cli.check import look_at_run

    with redirect_stdout(sys.stderr) if as_json else nullcontext():
        checked = check_of(loaded, partial(look_at_run, tries=tries), tried=tries > 0)
    return print_object(checked) if as_json else print_check(checked, verbose=verbose)


@_command("recipes")
def recipes(
    show: Annotated[
        str | None, typer.Option(metavar="NAME", help="Print this recipe.", autocompletion=complete_name)
    ] = None,
    copy: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Copy it here, with the files that it names.", autocompletion=complete_name),
    ] = None,
    out: Annotated[
        Path, typer.Option("-o", "--out", metavar="FOLDER", help="With --copy: the folder to copy to.")
    ] = Path(),
) -> int:
    """List the recipes that come with the package: `dapo train quickstart` runs one, `--copy NAME` makes it yours."""
    from dapo.cli.recipes import copy_recipe, list_recipes, show_recipe

    if show is not None:
        show_recipe(show)
    if copy is not None:
        copy_recipe(copy, out)
    if show is None and copy is None:
        list_recipes()
    return 0


@_command("init")
def init(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Writes NAME.yaml; also the run's name.")] = "mine",
    model: Annotated[str | None, typer.Option(help="A Hugging Face folder or hub name.")] = None,
    data: Annotated[str | None, typer.Option(metavar="FILE", help="Training problems, or `hub:owner/name`.")] = None,
    validation: Annotated[str | None, typer.Option(metavar="FILE", help="Held-out problems.")] = None,
    problem: Annotated[str | None, typer.Option(metavar="COLUMN", help="Holds the problem; default: found.")] = None,
    answer: Annotated[str | None, typer.Option(metavar="COLUMN", help="Holds the gold answer; default: found.")] = None,
    reward: Annotated[
        str | None, typer.Option(help="math, exact, last_number, or package.module:function; default: by the answers.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda; default: what is here.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Longest response.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Training steps; default: by the machine.")] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="RECIPE", help="The file to write; default: NAME.yaml.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over the file.")] = False,
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
    file = Path(f"{stem}.yaml") if out is None else out
    for line in write_recipe(wanted, file, force=force):
        print(line)
    print(f"wrote {file}. Look at it with: dapo check {shlex.quote(str(file))}")
    return 0


@_command("explain")
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
    """Explain a key: its default, the paper's section, other trainers' names for it, and the page."""
    from dapo.config.explain import explain as lines_about

    known, unknown = [], []
    for key in keys:
        try:
            known.append("\n".join(lines_about(key)))
        except RecipeError as error:
            unknown.append(str(error))
    if known:
        print(addressed("\n\n".join(known)))
    if unknown:
        raise RecipeError("\n".join(unknown))
    return 0


@_command("data")
def data(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder; the run may be going on.")],
    show: Annotated[
        str | None, typer.Option(metavar="KIND", help="List prompts: solved, hopeless, useful, unseen or all.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=0, help="Prompts to list of each kind.")] = None,
    step: Annotated[int | None, typer.Option(help="As of this checkpoint; default: the newest.")] = None,
) -> int:
    """Show a run's prompts (solved, useful, hopeless, unseen) and where its generated tokens went."""
    kinds = ("solved", "hopeless", "useful", "unseen", "all")
    if show is not None and show not in kinds:
        raise typer.BadParameter(f"{show!r} is none of {', '.join(kinds)}", param_hint="--show")
    from dapo.cli.data import show_data

    show_data(run, show, limit, step)  # type: ignore[arg-type]
    return 0


_command("evaluate")(evaluate)
_command("export")(export)
_command("rollouts")(rollouts)
_command("compare")(compare)


@_command("report")
def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Run folders; they may be going on. Several are compared.")
    ],
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="FOLDER", help="Default: RUN/report, or dapo-report for several runs."),
    ] = None,
    budget_mb: Annotated[float, typer.Option(help="Most megabytes of report.html.")] = 10.0,
    as_json: AsJson = False,
) -> int:
    """Write one HTML file that opens anywhere, and a trace for Perfetto."""
    from dapo.cli.report import report_runs

    report_runs(runs, out, budget_mb, as_json=as_json)
    return 0


@_command("view")
def view(
    runs_folder: Annotated[
        Path, typer.Argument(metavar="RUNS", help="A folder of runs, such as runs; or one run.")
    ] = Path("runs"),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where it is taken, the next free one.")] = PORT,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    open_browser: Annotated[bool, typer.Option("--open/--no-open", help="Show the page in the browser.")] = False,
    expose: Annotated[
        bool, typer.Option("--expose", help="Allow a --host that others can reach. There is no password.")
    ] = False,
) -> int:
    """Show runs in the browser, updating while they go on: a local, read-only server."""
    from dapo.cli.view import view as view_runs

    return view_runs(runs_folder, port, host, open_browser, expose)
