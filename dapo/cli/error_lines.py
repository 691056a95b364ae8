"""Errors on the console: one red word and a sentence, without a traceback and without secrets."""

from __future__ import annotations

from dapo.errors import DapoError
from dapo.links import addressed


def said_of(error: DapoError) -> str:
    """Return the message of an error. It may quote a recipe, a data file or a response."""
    from dapo.config.faults import visible
    from dapo.config.secret_text import redact_text

    return "\n".join(visible(line) for line in addressed(redact_text(str(error))).split("\n"))


def tell_error(error: DapoError) -> None:
    """Print an error to stderr."""
    from rich.console import Console
    from rich.text import Text

    Console(stderr=True, soft_wrap=True, highlight=False).print(
        Text("error: ", "bold red").append(said_of(error), "not bold default")
    )
