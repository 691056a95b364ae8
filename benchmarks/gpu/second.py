"""A second process on the same device: it takes memory, gives it back, and reads weights that another one published.

One JSON object a line comes on standard input, and one goes to standard output. The process ends with its input.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


class Second:
    """The process, as the first one speaks to it."""

    def __init__(self, device: str) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.gpu.second", device],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True,
        )  # fmt: skip

    def take(self, count: int) -> str:
        """Have it take so many bytes of the device, from the driver; "" or what torch says instead."""
        return str(self._ask({"take": count}))

    def drop(self) -> None:
        """Have it give them back."""
        self._ask({"drop": True})

    def sums(self, ticket: Any) -> dict[str, int]:
        """Return checksums of the tensors of a ticket, as it reads them."""
        return dict(self._ask({"read": base64.b64encode(pickle.dumps(ticket)).decode()}))

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _ask(self, question: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the second process ended with exit code {self._process.wait()}; log.txt says why")
        found = json.loads(answer)
        if "error" in found:
            raise RuntimeError(f"the second process: {found['error']}")
        return found["answer"]


@contextlib.contextmanager
def second(device: str) -> Iterator[Second]:
    """A second process, which is ended behind the block."""
    process = Second(device)
    try:
        yield process
    finally:
        process.close()


def main() -> None:
    """``python -m benchmarks.gpu.second DEVICE``."""
    import torch

    from dapo.models.checksum import checksum
    from dapo.weights.routes import receive

    device = torch.device(sys.argv[1])
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print is no answer
    held: list[Any] = []
    for line in sys.stdin:
        asked = json.loads(line)
        answer: Any = None
        try:
            if "take" in asked:
                try:
                    held.append(torch.empty(asked["take"], dtype=torch.uint8, device=device))
                    answer = ""
                except RuntimeError as error:  # torch's out of memory is one, too
                    answer = str(error).partition("\n")[0]
            elif "drop" in asked:
                held.clear()
                if device.type == "cuda":
                    torch.cuda.empty_cache()
            else:
                ticket = pickle.loads(base64.b64decode(asked["read"]))
                answer = {name: checksum(tensor) for name, tensor in receive(ticket, device)}
            out.write(json.dumps({"answer": answer}) + "\n")
        except Exception as error:
            out.write(json.dumps({"error": f"{type(error).__name__}: {error}"}) + "\n")


if __name__ == "__main__":
    main()
