"""Python's own logging into RUN/log.txt, and its warnings onto the console."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dapo.config.secret_text import redact_text
from dapo.observe.text import clean

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


@contextmanager
def logging_to(path: Path, warn: Callable[[str], None] | None = None) -> Iterator[logging.Logger]:
    """Send the package's log records and Python's warnings to ``path`` (appended) while the context lasts.

    ``warn`` (the console's) also gets the package's records from WARNING on; warnings of other libraries go to the file
    only. The handlers are taken away again at the end, so runs in one process do not write into each other's logs.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    package, python_warnings = logging.getLogger("dapo"), logging.getLogger("py.warnings")
    file = _File(path, encoding="utf-8", errors="replace")
    file.setFormatter(_CleanFormatter(_FORMAT))
    screen = _ConsoleHandler(warn) if warn is not None else None
    level, propagate = package.level, package.propagate
    package.setLevel(logging.INFO)
    package.propagate = False  # a root handler of the embedding program would print every record again
    package.addHandler(file)
    python_warnings.addHandler(file)
    if screen is not None:
        package.addHandler(screen)
    logging.captureWarnings(True)
    try:
        yield package
    finally:
        logging.captureWarnings(False)
        for handler in filter(None, (file, screen)):
            package.removeHandler(handler)
            python_warnings.removeHandler(handler)
            with suppress(OSError):  # a full disk; the error that ends the run is the one to hear of
                handler.close()
        package.setLevel(level)
        package.propagate = propagate


@contextmanager
def warnings_to(warn: Callable[[str], None]) -> Iterator[None]:
    """Show the package's records from WARNING on, where no file takes them."""
    package, screen = logging.getLogger("dapo"), _ConsoleHandler(warn)
    package.addHandler(screen)
    try:
        yield
    finally:
        package.removeHandler(screen)


class _File(logging.FileHandler):
    def handleError(self, record: logging.LogRecord) -> None:
        """Keep the log silent on a full disk: the run itself reports whatever stops it then."""


class _CleanFormatter(logging.Formatter):
    """Messages may quote responses and servers: what could steer a terminal that shows the file is made visible, and
    secrets are hidden."""

    def format(self, record: logging.LogRecord) -> str:
        return clean(redact_text(super().format(record))).replace("\n", "\n    ")


class _ConsoleHandler(logging.Handler):
    def __init__(self, warn: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._warn = warn

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._warn(redact_text(record.getMessage()))
        except Exception:  # the logging module's own rule: a record that cannot be shown never stops the program
            self.handleError(record)
