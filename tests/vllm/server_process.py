"""A vLLM server in a process group of its own, started as docs/vllm_server.md says."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress

LONGEST = 1024
ENVIRONMENT = {
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
}
_PLAIN = (
    f"--max-model-len {LONGEST} --max-num-seqs 64 --enable-prefix-caching --enforce-eager --dtype float32 "
    "--kv-cache-memory-bytes 134217728 --gpu-memory-utilization 0.1 --block-size 32 --no-enable-chunked-prefill "
    "--max-num-batched-tokens 4096"
)
TEACHER = _PLAIN.split()
"""As docs/distillation.md starts one, on a CPU."""
ARGUMENTS = (
    f"{_PLAIN} --enable-scale-out --logprobs-mode processed_logprobs --scheduling-policy priority "
    "--no-async-scheduling --worker-extension-cls dapo.engines.vllm.WeightWorker --generation-config vllm "
    "--skip-tokenizer-init --enable-prompt-tokens-details"
).split()


PATIENCE = 900.0  # seconds that a server may need to start: a minute and a half here, alone


def free_port():
    """One that nobody listens at, outside of those given to whoever connects: free between a kill and a start, too."""
    while True:
        with suppress(OSError), socket.socket() as one:
            one.bind(("127.0.0.1", random.SystemRandom().randrange(15_000, 30_000)))
            return one.getsockname()[1]


class Server:
    """A vLLM server in a process group of its own."""

    def __init__(self, model, folder, arguments=ARGUMENTS):
        self.arguments, self.port = arguments, free_port()
        self.model, self.folder = model, folder
        self.address = f"http://127.0.0.1:{self.port}"
        self.log = (folder / "server.log").open("ab")
        self.process = None

    def start(self):
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", self.model]
        self.process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(self.port), *self.arguments],
            env=os.environ | ENVIRONMENT, cwd=self.folder, start_new_session=True, stdout=self.log, stderr=self.log,
        )  # fmt: skip

    def wait(self):
        end = time.monotonic() + PATIENCE
        while True:
            with suppress(OSError):
                return urllib.request.urlopen(f"{self.address}/health", timeout=5).close()
            assert self.process.poll() is None, (self.folder / "server.log").read_text()[-4000:]
            assert time.monotonic() < end, (self.folder / "server.log").read_text()[-4000:]
            time.sleep(0.3)

    def kill(self):
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
