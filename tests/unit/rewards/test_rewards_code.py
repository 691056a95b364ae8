"""Reward ``code``: which programs are right, and that none is right by deceiving the tests."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from each import each
from scoring import completion, prompt, score_all

from dapo.config.schema import Reward
from dapo.rewards.code import CodeJudge, CodeSettings, find_program, read_tests
from dapo.rewards.compose import build_scorer
from dapo.sandbox import select
from dapo.sandbox.runs import SandboxError
from dapo.sandbox.select import SandboxSettings

ANY = SandboxSettings(require="none")
ADD = ["assert add(1, 2) == 3", "assert add(0, 0) == 0", "assert add(-1, 1) == 0"]


@pytest.fixture(scope="module")
def judges() -> Iterator[dict[str, CodeJudge]]:
    made = {
        "inside": CodeJudge("accuracy", CodeSettings(sandbox=ANY, timeout=20.0)),
        "apart": CodeJudge("accuracy", CodeSettings(sandbox=ANY, timeout=20.0, entry_point="entry_point")),
        "short": CodeJudge("accuracy", CodeSettings(sandbox=ANY, timeout=0.7, entry_point="entry_point")),
    }
    yield made
    for judge in made.values():
        judge.close()


def passed(judge: CodeJudge, program: str, tests: list[Any], entry_point: str = "add") -> list[bool]:
    return list(judge.examine(prompt(tests=tests, entry_point=entry_point), program).passed)


@pytest.mark.parametrize("way", ["inside", "apart"])
@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("def add(a, b):\n    return a + b", [True, True, True]),
        ("add = lambda a, b: a + b\nprint('noise', 1)", [True, True, True]),
        ("def add(a, b):\n    return a - b", [False, True, False]),
        ("def add(a, b):\n    if a: raise ValueError('no')\n    return 0", [False, True, False]),
        ("def add(a, b):\n    return a + b\n1 / 0", [False, False, False]),
        ("def add(a, b:", [False, False, False]),
        ("", [False, False, False]),
        ("\x00", [False, False, False]),
        ("\ud800", [False, False, False]),
    ],
)
def test_each_test_passes_or_fails(judges: dict[str, CodeJudge], way: str, program: str, expected: list[bool]) -> None:
    assert passed(judges[way], program, ADD) == expected


CHEATS = {
    "an early exit": "import sys\nsys.exit(0)",
    "an exit without ceremony": "import os\nos._exit(0)",
    "an exit when called": "import os\ndef add(a, b):\n    os._exit(0)",
    "SystemExit when called": "def add(a, b):\n    raise SystemExit(0)",
    "a killed group": "import os, signal\nos.killpg(0, signal.SIGKILL)",
    "a killed examiner": "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\ndef add(a, b): return 9",
    "a stopped program": "def add(a, b): return 9\nimport atexit\natexit.register(print, '0' * 32 + ' 0')",
    "other builtins": "import builtins\nbuiltins.exec = builtins.compile = lambda *a, **k: ''\n"
    "builtins.AssertionError = type('No', (BaseException,), {})\ndef add(a, b): return 9",
    "an assertion error that is none": "import builtins\nclass AssertionError(Exception): pass\n"
    "builtins.__dict__['AssertionError'] = AssertionError\ndef add(a, b): return 9",
    "an exception hook": "import sys, os\nsys.excepthook = lambda *a: os._exit(0)\ndef add(a, b): return 9",
    "printed lines": "import os\nfor n in range(3):\n    os.write(1, b'%d\\n' % n)\n"
    "print('0 end')\ndef add(a, b): return 9",
    "a forged answer": "import os, json, struct\n"
    "data = json.dumps({'nonce': '0'}).encode()\n"
    "os.write(3, struct.pack('!I', len(data)) + data)\ndef add(a, b): return 9",
    "an answer of nonsense": "import os\nos.write(3, b'\\xff' * 4096)\ndef add(a, b): return 9",
    "reading what is there": "import sys, gc, re\nframe, found = sys._getframe(), []\n"
    "while frame: found.append(repr(frame.f_locals)); frame = frame.f_back\n"
    "found += [o for o in gc.get_objects() if isinstance(o, str)]\n"
    "found += [repr(o) for o in gc.get_objects() if isinstance(o, dict) and 'tests' in o]\n"
    "hits = [t for t in found if 'ad' + 'd(1, 2)' in t]\n"
    "if hits:\n    def add(a, b): return {(1, 2): 3, (0, 0): 0, (-1, 1): 0}[a, b]",
    "reading its input": "import sys\ntext = sys.stdin.read()\n"
    "if 'assert' in text:\n    def add(a, b): return 3 if a == 1 else 0",
}


@pytest.mark.parametrize("way", ["inside", "apart"])
@pytest.mark.parametrize("cheat", list(CHEATS))
def test_a_cheat_passes_nothing(judges: dict[str, CodeJudge], way: str, cheat: str) -> None:
    assert not any(passed(judges[way], CHEATS[cheat], ADD))


@pytest.mark.parametrize(
    "cheat",
    [
        "class Equal(int):\n    __eq__ = lambda *a: True\n    __hash__ = int.__hash__\ndef add(a, b): return Equal(9)",
        "class Equal:\n    __eq__ = lambda *a: True\ndef add(a, b): return Equal()",
        "class Equal(str):\n    __str__ = __repr__ = lambda s: '3'\n    __eq__ = lambda *a: True\n"
        "def add(a, b): return Equal()",
        "import sys\ndef add(a, b):\n    frame = sys._getframe()\n    while frame:\n"
        "        for v in frame.f_locals.values():\n"
        "            if '1, 2) =' + '= 3' in repr(v): return 3\n        frame = frame.f_back\n    return 9",
        "import os\nfor n in range(64):\n    try: os.write(n, b'\\0\\0\\0\\2{}')\n    except OSError: pass\n"
        "def add(a, b): return 9",
        "import threading, os, struct, json\ndef add(a, b):\n"
        "    data = json.dumps({'result': {'nonsense': 1}}).encode()\n"
        "    os.write(3, struct.pack('!I', len(data)) + data)\n    return 9",
    ],
)
def test_apart_no_object_of_the_program_is_compared(judges: dict[str, CodeJudge], cheat: str) -> None:
    assert not any(passed(judges["apart"], cheat, ADD))


def test_values_travel_and_arguments_change_as_in_one_process(judges: dict[str, CodeJudge]) -> None:
    program = (
        "import collections, fractions\n"
        "def f(what, *args, **named):\n"
        "    if what == 'sort': args[0].sort(); return None\n"
        "    if what == 'echo': return args[0]\n"
        "    if what == 'make': return eval(args[0], globals())\n"
        "    raise KeyError('unknown')\n"
    )
    tests = [
        "x = [3, 1, 2]\nassert f('sort', x) is None\nassert x == [1, 2, 3]",
        "for v in (None, True, 2**200, -1.5, 'é\\ud800', b'\\xff', [1, [2]], (1, (2,)), {1, 2}, frozenset('a'),"
        " {(1, 2): 'x'}, 1j, range(3)):\n    got = f('echo', v)\n"
        "    assert got == v and type(got) is type(v), (got, v)",
        "import math\nassert math.isnan(f('make', \"float('nan')\")) and f('make', \"float('inf')\") == math.inf",
        "assert f('make', '(n * n for n in range(3))') == [0, 1, 4]",
        "assert f('make', 'collections.Counter(\"aab\")') == {'a': 2, 'b': 1}",
        "assert f('make', 'fractions.Fraction(1, 3)').denominator == 3",
        "try:\n    f('other')\n    assert False\nexcept KeyError as e:\n    assert 'unknown' in str(e)",
        "def check(candidate):\n    assert candidate('echo', 1) == 1",
    ]
    assert passed(judges["apart"], program, tests, "f") == [True] * len(tests)
    wrong = [
        "assert f('make', 'object()') is not None",
        "assert f('make', 'iter(int, 1)')",
        "def check(candidate):\n    assert candidate('echo', 1) == 2",
        "try:\n    f('make', '__import__(\"os\")._exit(0)')\nexcept:\n    pass",
    ]
    assert passed(judges["apart"], program, wrong, "f") == [False] * len(wrong)


@pytest.mark.parametrize("entry_point", ["Solution().add", "Solution.add", "add"])
def test_a_method_is_an_entry_point(judges: dict[str, CodeJudge], entry_point: str) -> None:
    program = "class Solution:\n    def add(self, a, b):\n        return a + b"
    name = entry_point if "()" in entry_point else "add"
    tests = [f"assert {name}(1, 2) == 3", "assert candidate(1, 2) == 3", "assert candidate(1, 2) == 4"]
    assert passed(judges["apart"], program, tests, entry_point) == [True, True, False]


@pytest.mark.parametrize("way", ["inside", "apart"])
def test_an_exception_is_caught_by_the_names_of_its_kinds(judges: dict[str, CodeJudge], way: str) -> None:
    program = (
        "import json\n"
        "class Mine(ValueError):\n    def __str__(self): raise RuntimeError\n"
        "def f(x):\n"
        "    if x == 'mine': raise Mine\n"
        "    if x == 'key': {}['k']\n"
        "    return json.loads(x) if x == '{' else x.encode('ascii')\n"
    )
    tests = [
        f"try:\n    f({given!r})\n    assert False\nexcept {kind}: pass"
        for given, kind in (("mine", "ValueError"), ("key", "LookupError"), ("{", "ValueError"), ("é", "UnicodeError"))
    ]
    assert passed(judges[way], program, tests, "f") == [True] * len(tests)
    wrong = [test.partition("except")[0] + "except OSError: pass" for test in tests]
    assert passed(judges[way], program, wrong, "f") == [False] * len(tests)


def test_inputs_and_outputs_are_compared_outside(judges: dict[str, CodeJudge]) -> None:
    tests = [{"stdin": "1 2\n", "stdout": "3\n\n"}, {"stdin": "5 6", "stdout": "11"}]
    judge = judges["inside"]
    assert passed(judge, "print(sum(map(int, input().split())), ' ')", tests) == [True, True]
    assert passed(judge, "print(3)", tests) == [True, False]
    assert passed(judge, "print(sum(map(int, input().split())))\nraise SystemExit(1)", tests) == [False, False]
    assert passed(judge, "import os; os._exit(0)", tests) == [False, False]


def test_an_endless_program_is_wrong_and_keeps_what_had_passed(judges: dict[str, CodeJudge]) -> None:
    program = "def add(a, b):\n    while a < 0: pass\n    return a + b"
    verdict = judges["short"].examine(prompt(tests=ADD, entry_point="add"), program)
    assert verdict.passed == (True, True, False)
    assert verdict.late
    tests = [{"stdin": "1", "stdout": "1"}, {"stdin": "2", "stdout": "2"}]
    verdict = judges["short"].examine(prompt(tests=tests), "n = input()\nwhile n == '1': pass\nprint(n)")
    assert verdict.passed == (False, False)
    assert verdict.late


@each(
    ("text", "program"),
    [
        ("def f(): pass", "def f(): pass"),
        ("So:\n```python\na = 1\n```\nor\n```\nb = 2\n```\nend", "b = 2\n"),
        ("```py\na = 1\n", "a = 1\n"),
        ("````\n```\na\n````", "```\na\n"),
        ("  ```python\n  x\n  ```", "  x\n"),
        ("", ""),
    ],
)
def test_the_program_is_the_last_block(text: str, program: str) -> None:
    assert find_program(text) == program


@each("tests", [None, [], 3, "", [1], [{"stdin": "x"}], ["assert 1", {"stdin": "", "stdout": ""}]])
def test_a_record_without_tests_has_no_verdict(tests: Any) -> None:
    if tests == "":
        assert read_tests(prompt(tests=tests), "tests") == [""]
        return
    with pytest.raises(ValueError, match="column 'tests'"):
        read_tests(prompt(tests=tests), "tests")


def test_tests_may_be_json() -> None:
    assert read_tests(prompt(tests='["assert f() == 1"]'), "tests") == ["assert f() == 1"]
    assert read_tests(prompt(tests="assert f() == 1"), "tests") == ["assert f() == 1"]


@pytest.mark.whole
def test_as_a_reward_in_worker_processes() -> None:
    rewards = [
        Reward(kind="code", entry_point="entry_point", timeout=20.0),
        Reward(name="share", kind="code", entry_point="entry_point", timeout=20.0, partial=True, weight=0.0),
    ]
    scorer = build_scorer(rewards, workers=2, sandbox=ANY)
    try:
        assert scorer.sandbox is not None
        assert scorer.sandbox.startswith("sandbox: ")
        texts = [
            "```python\ndef add(a, b):\n    return a + b\n```",
            "def add(a, b):\n    return 0",
            "import os\nos._exit(0)",
        ]
        right, half, wrong = score_all(scorer, texts, prompt(tests=ADD, entry_point="add"))
        assert right.values == {"accuracy": 1.0, "tests_passed": 1.0, "timed_out": 0.0, "share": 1.0}
        assert half.values["accuracy"] == 0.0
        assert half.values["share"] == pytest.approx(2 / 3)
        assert wrong.scored
        assert wrong.reward == 0.0
        (broken,) = score_all(scorer, texts[:1], prompt(tests=[]))
        assert broken.reason is not None
        assert broken.reason.startswith("exception: ValueError: the column 'tests'")
    finally:
        scorer.close()


def test_without_a_sandbox_a_response_is_unscored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dapo.rewards.compose.try_sandbox", lambda _: "sandbox: gone since")
    nowhere = SandboxSettings(kind="http", url="http://127.0.0.1:9/")
    scorer = build_scorer([Reward(kind="code")], sandbox=nowhere)
    try:
        (score,) = score_all(scorer, ["def add(a, b): return a + b"], prompt(tests=ADD))
        assert not score.scored
        assert score.reason is not None
        assert score.reason.startswith("sandbox: the sandbox at http://127.0.0.1:9/")
        assert scorer.failures == {"sandbox": 1}
    finally:
        scorer.close()


def test_a_sandbox_that_is_not_to_be_had_is_refused_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(select.LocalSandbox, "_launch", lambda *_: {"failed": "namespaces: not permitted"})
    with pytest.raises(SandboxError, match=r"sandbox\.require is full.* not permitted"):
        build_scorer([Reward(kind="code")])


def test_a_completion_is_read_as_any_other(judges: dict[str, CodeJudge]) -> None:
    values, vote = judges["inside"].score(prompt(tests=["assert x == 1"]), completion("x = 1"), None)
    assert values["accuracy"] == 1.0
    assert vote is None


DRIVER = """
from scoring import completion, prompt
from dapo.config.schema import Reward
from dapo.rewards.compose import build_scorer
from dapo.sandbox.select import SandboxSettings

program = "import os\\nfor _ in range(3): os.fork()\\nwhile True: pass"
scorer = build_scorer([Reward(kind="code", timeout=300.0)], sandbox=SandboxSettings(require="none"))
scorer.submit((0, 0), prompt(tests=["assert x"]), completion(program))
while True:
    scorer.poll(1.0)
    print("running", flush=True)
"""


@pytest.mark.whole
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_programs_end_with_a_driver_that_is_killed() -> None:
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    driver = subprocess.Popen([sys.executable, "-c", DRIVER], stdout=subprocess.PIPE, env={"PYTHONPATH": paths})
    assert driver.stdout is not None
    assert driver.stdout.readline() == b"running\n"
    until = time.monotonic() + 60
    while len(started := descendants(driver.pid)) < 8:  # guard, worker, server, the program with its forks
        assert time.monotonic() < until, started
        time.sleep(0.1)
    driver.kill()
    driver.wait()
    driver.stdout.close()
    while left := [process for process in started if Path("/proc", str(process)).exists()]:
        assert time.monotonic() < until + 60, left
        time.sleep(0.1)


def descendants(process: int) -> set[int]:
    parents = {}
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(OSError):
            parents[int(name)] = int(Path("/proc", name, "stat").read_text().rpartition(")")[2].split()[1])
    found, fresh = set[int](), {process}
    while fresh:
        fresh = {child for child, parent in parents.items() if parent in fresh}
        found |= fresh
    return found
