"""The tool ``python``: programs of the model run in the sandbox, and the model reads what became of them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest

from dapo.environments.pool import EnvironmentPool
from dapo.environments.programs import PYTHON, ProgramSettings, told
from dapo.environments.worker import Load
from dapo.errors import RecipeError
from dapo.sandbox.runs import Ran
from dapo.sandbox.select import SandboxSettings
from dapo.types.batch import Key, Prompt
from dapo.types.environment import Answer, Question, Spoken

ANY = SandboxSettings(require="none")
Pool = Callable[..., EnvironmentPool]


@pytest.fixture
def pool() -> Iterator[Pool]:
    made: list[EnvironmentPool] = []

    def make(sandbox: SandboxSettings = ANY, timeout: float = 20.0, tell: bool = False) -> EnvironmentPool:
        what = Load(None, {}, (PYTHON,), "hermes", 60.0, 8, tell, ProgramSettings(sandbox, timeout, 512))
        made.append(EnvironmentPool(what, workers=1, memory_mib=2048))
        made[-1].start()
        return made[-1]

    yield make
    for one in made:
        one.close()


def call(subject: EnvironmentPool, *programs: str) -> Answer:
    asked = [{"name": "python", "arguments": {"code": program}} for program in programs]
    text = "".join(f"<tool_call>{json.dumps(each)}</tool_call>" for each in asked)
    prompt = Prompt("id", "text", np.array([1, 2]), "problem", "7", "source")
    subject.ask(Question(Key("train", 0, 0), prompt, 11, (), Spoken(0, text, text, (3, 4), 90, 7)))
    (answer,) = subject.poll(None)
    return answer


def contents(answer: Answer) -> list[str]:
    assert answer.reply is not None
    return [message["content"] for message in answer.reply.messages]


def test_the_model_reads_what_its_programs_print(pool: Pool) -> None:
    subject = pool()
    (schema,) = subject.abilities.tools
    assert schema["function"]["name"] == "python"
    assert schema["function"]["parameters"]["required"] == ["code"]
    answer = call(subject, "print(6 * 7)", "x = 1", "print('so far')\n1 / 0", "import sys; sys.exit(3)", "print(x)")
    first, silent, failed, left, second = contents(answer)
    assert (first, silent, left) == ("42", "[no output]", "error: the program ended with code 3")
    assert failed.startswith("so far\nTraceback")
    assert failed.endswith("ZeroDivisionError: division by zero")
    assert "NameError" in second, "each program starts anew"
    assert answer.reply is not None
    assert answer.reply.tool_errors == 0, "the calls were right"


def test_an_endless_program_is_told_to_the_model(pool: Pool) -> None:
    (said,) = contents(call(pool(timeout=0.5), "print('begun', flush=True)\nwhile True: pass"))
    assert said == "begun\nerror: the program did not end within 0.5 s"


def test_programs_are_confined(pool: Pool) -> None:
    try:
        subject = pool(SandboxSettings(require="files"))
    except RecipeError as error:
        pytest.skip(str(error))
    (said,) = contents(call(subject, f"print(open({__file__!r}).read())"))
    assert said.endswith(("No such file or directory: " + repr(__file__), "Permission denied: " + repr(__file__)))


def test_a_sandbox_that_is_lost_is_no_mistake_of_the_model(pool: Pool) -> None:
    class Service(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            code = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["code"]
            answer = json.dumps({"output": "ready\n", "exit_code": 0, "seconds": 0.1}).encode()
            self.send_response(200 if "ready" in code else 500)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Service) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        subject = pool(SandboxSettings(kind="http", url=f"http://127.0.0.1:{server.server_port}/"))
        answer = call(subject, "print(1)")
        server.shutdown()
    assert answer.reply is None
    assert answer.failure is not None
    assert answer.failure.startswith("exception: SandboxError: the sandbox at")


def test_a_sandbox_that_cannot_be_had_is_refused_at_the_start(pool: Pool) -> None:
    with pytest.raises(RecipeError, match=r"the sandbox at http://127\.0\.0\.1:9/"):
        pool(SandboxSettings(kind="http", url="http://127.0.0.1:9/"))


@pytest.mark.parametrize(
    ("ran", "said"),
    [
        (Ran("a\n\n", "", 0, 0.1), "a"),
        (Ran("", "a warning", 0, 0.1), "[no output]"),
        (Ran("a\n", "", 0, 0.1, cut=True), "a\n[the output was cut]"),
        (Ran("", "", -9, 0.1), "error: the program ended with code -9"),
    ],
)
def test_what_is_told(ran: Ran, said: str) -> None:
    assert told(ran, 5.0) == said
