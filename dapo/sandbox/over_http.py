r"""A sandbox behind HTTP: a program is sent to a service, which says what it wrote and how it ended.

A request is ``POST url`` with JSON, and so is its answer::

    {"code": "print(input())", "stdin": "hello", "timeout": 5.0, "memory_mib": 512, "output_bytes": 65536}
    {"output": "hello\n", "errors": "", "exit_code": 0, "seconds": 0.03}

``exit_code`` is null where the time limit ended the program, and the negative number of a signal. What isolates
programs is the service's affair.
"""

from __future__ import annotations

import json
import math
from typing import Any

from dapo.http import Background, Client, HttpError, read_key, without_query
from dapo.sandbox.runs import OUTPUT_BYTES, Ran, SandboxError

_GRACE = 30.0  # seconds beyond a program's time limit for the service and the network


class ServiceSandbox:
    """A ``Sandbox`` behind HTTP."""

    def __init__(self, url: str, api_key_variable: str | None = None) -> None:
        """Describe a sandbox.

        Args:
            url: where programs are sent.
            api_key_variable: environment variable whose value is sent as a bearer token; None: none is.
        """
        self._url, self._shown, self._variable = url, without_query(url), api_key_variable
        self._background: Background | None = None

    def start(self) -> str:
        """Run a first program; see ``Sandbox``."""
        ran = self.run("print('ready')", timeout=10.0)
        if ran.output != "ready\n":
            raise SandboxError(f"the sandbox at {self._shown} does not run a program that prints: {ran}")
        return f"sandbox: a service ({self._shown}); what holds there is not known here"

    def run(
        self, program: str, stdin: str = "", *, timeout: float = 5.0, memory_mib: int = 512, output: int = OUTPUT_BYTES
    ) -> Ran:
        """Run a program; see ``Sandbox``."""
        asked = {"code": program, "stdin": stdin, "timeout": timeout, "memory_mib": memory_mib, "output_bytes": output}
        try:
            key = self._variable and read_key(
                self._variable, "sandbox.api_key_variable", f"the sandbox at {self._shown}"
            )
        except ValueError as error:
            raise SandboxError(str(error)) from None
        try:
            if self._background is None:
                self._background = Background("sandbox")
            answer = self._background.call(self._post(key, asked, timeout + _GRACE, 8 * output + (1 << 20)))
            return _read(json.loads(answer), output)
        except HttpError as error:
            raise SandboxError(f"the sandbox at {self._shown}: {error}") from None
        except (ValueError, RecursionError) as error:
            raise SandboxError(f"the sandbox at {self._shown} gave no answer of the documented form: {error}") from None

    async def _post(self, key: str | None, asked: Any, seconds: float, limit: int) -> bytes:
        client = Client(key)
        try:
            return await client.post(self._url, asked, seconds, limit=limit)
        finally:
            await client.close()

    def close(self) -> None:
        """End the thread that asks; no connection is kept."""
        if self._background is not None:
            self._background.stop()
            self._background = None


def _read(answer: Any, limit: int) -> Ran:
    """Return the answer, checked.

    Raises:
        ValueError: it has another form.
    """
    if not isinstance(answer, dict):
        raise ValueError(f"expected an object, found {type(answer).__name__}")
    output, errors, code = answer.get("output"), answer.get("errors", ""), answer.get("exit_code")
    seconds = answer.get("seconds")
    if not isinstance(output, str) or not isinstance(errors, str):
        raise ValueError("`output` and `errors` have to be texts")
    if "exit_code" not in answer or (code is not None and (not isinstance(code, int) or isinstance(code, bool))):
        raise ValueError("`exit_code` has to be a whole number, or null after the time limit")
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not math.isfinite(seconds):
        raise ValueError("`seconds` has to be a number")
    return Ran(output[:limit], errors[:limit], code, float(seconds), len(output) > limit or len(errors) > limit)
