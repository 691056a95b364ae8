"""Reward ``code``: the response is a Python program, which runs in a sandbox against the tests of its record."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dapo.rewards import code_runner
from dapo.sandbox.runs import OUTPUT_BYTES, Ran, Sandbox, SandboxError
from dapo.sandbox.select import SandboxSettings, make_sandbox
from dapo.types.batch import Prompt, Response

_FENCE = "```"
TRIES = 2
"""So often a program is tried whose sandbox was lost."""
START_SECONDS = 150.0
"""Seconds that a worker has beside a program's time: for the start of a sandbox, twice."""


@dataclass(frozen=True, slots=True)
class CodeSettings:
    """Settings of a code reward from the recipe; they can be pickled for workers."""

    tests: str = "tests"
    entry_point: str | None = None
    partial: bool = False
    timeout: float = 5.0
    memory_mib: int = 512
    sandbox: SandboxSettings = field(default_factory=SandboxSettings)


@dataclass(frozen=True, slots=True)
class ProgramVerdict:
    """Result of a program.

    Attributes:
        passed: for each test, whether it passed.
        late: the time limit ended the program.
    """

    passed: tuple[bool, ...]
    late: bool

    @property
    def share(self) -> float:
        return sum(self.passed) / len(self.passed)


def find_program(text: str) -> str:
    """Return the last fenced block of a text, without its fences; without a fence, all of the text.

    A block that is not closed goes to the end.
    """
    block: list[str] | None = None
    fence = ""
    found: str | None = None
    for line in text.splitlines(keepends=True):
        bare = line.strip()
        if block is None and bare.startswith(_FENCE):
            fence = bare[: len(bare) - len(bare.lstrip("`"))]
            block = []
        elif block is not None and bare.startswith(fence) and not bare.strip("`"):
            found, block = "".join(block), None
        elif block is not None:
            block.append(line)
    if block is not None:
        return "".join(block)
    return text if found is None else found


def read_tests(prompt: Prompt, column: str) -> list[str] | list[dict[str, str]]:
    """Return the tests of a record: texts with asserts, or mappings of input and expected output.

    Raises:
        ValueError: the record has none, or something else.
    """
    tests = prompt.extra.get(column)
    if isinstance(tests, str):
        try:
            tests = json.loads(tests)
        except ValueError:
            tests = [tests]
    if not isinstance(tests, Sequence) or isinstance(tests, str | bytes) or not tests:
        raise ValueError(f"the column {column!r} holds no list of tests: {_short(tests)}")
    if all(isinstance(test, str) for test in tests):
        return list(tests)
    pairs = [test for test in tests if isinstance(test, Mapping)]
    texts = [(pair.get("stdin") or "", pair.get("stdout")) for pair in pairs]
    if len(pairs) == len(tests) and all(isinstance(each, str) for pair in texts for each in pair):
        return [{"stdin": given, "stdout": str(expected)} for given, expected in texts]
    raise ValueError(
        f"the column {column!r} has to hold texts with asserts, or mappings {{stdin, stdout}} of texts: {_short(tests)}"
    )


class CodeJudge:
    """Runs programs against tests, in a sandbox that starts with the first one."""

    def __init__(self, name: str, settings: CodeSettings) -> None:
        """See ``CodeSettings``; ``name`` is the reward's."""
        self._name, self._settings = name, settings
        self._sandbox: Sandbox = make_sandbox(settings.sandbox)
        self._runner = Path(code_runner.__file__).read_text(encoding="utf-8")

    def score(self, prompt: Prompt, completion: Response, program: str | None) -> tuple[dict[str, float], None]:
        """Return the reward's numbers; a program has no answer that could vote.

        Raises:
            SandboxError: no sandbox, so no verdict.
            ValueError: the record has no tests.
        """
        found = self.examine(prompt, find_program(completion.text) if program is None else program)
        value = found.share if self._settings.partial else float(all(found.passed))
        values = {self._name: value}
        if self._name == "accuracy":
            values |= {"tests_passed": found.share, "timed_out": float(found.late)}
        return values, None

    def examine(self, prompt: Prompt, program: str) -> ProgramVerdict:
        """Run a program against the tests of a record; see ``score``."""
        tests = read_tests(prompt, self._settings.tests)
        for attempt in range(TRIES):
            try:
                if isinstance(tests[0], str):
                    return self._asserts(prompt, program, tests)
                return self._outputs(program, tests)  # type: ignore[arg-type]
            except SandboxError:
                if attempt == TRIES - 1:
                    raise
        raise AssertionError

    def close(self) -> None:
        """End the sandbox."""
        self._sandbox.close()

    def _asserts(self, prompt: Prompt, program: str, tests: Sequence[Any]) -> ProgramVerdict:
        column = self._settings.entry_point
        entry_point = None if column is None else prompt.extra.get(column)
        if column is not None and not isinstance(entry_point, str):
            raise ValueError(f"the column {column!r} holds no name of a function: {_short(entry_point)}")
        token = secrets.token_hex(16)
        asked = {"program": program, "tests": list(tests), "entry_point": entry_point, "token": token}
        ran = self._run(self._runner, json.dumps(asked), self._settings.timeout, OUTPUT_BYTES + 64 * len(tests))
        lines = set(ran.output.splitlines())
        return ProgramVerdict(
            tuple(f"{token} {number}" in lines for number in range(len(tests))), ran.exit_code is None
        )

    def _outputs(self, program: str, tests: Sequence[Mapping[str, str]]) -> ProgramVerdict:
        """Compare what a program prints, here: it sees no expected output. All tests share the time limit."""
        until = time.monotonic() + self._settings.timeout
        passed: list[bool] = []
        late = False
        for test in tests:
            left = until - time.monotonic()
            if late or left <= 0:
                passed.append(False)
                late = True
                continue
            ran = self._run(program, test["stdin"], left, OUTPUT_BYTES + 2 * len(test["stdout"].encode()))
            late = ran.exit_code is None
            passed.append(ran.exit_code == 0 and _lines(ran.output) == _lines(test["stdout"]))
        return ProgramVerdict(tuple(passed), late)

    def _run(self, program: str, stdin: str, seconds: float, output: int) -> Ran:
        return self._sandbox.run(program, stdin, timeout=seconds, memory_mib=self._settings.memory_mib, output=output)


def _lines(text: str) -> list[str]:
    """Return the lines of an output as they are compared: no white space at their ends, no empty ones at the end."""
    return [line.rstrip() for line in text.rstrip().splitlines()]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"
