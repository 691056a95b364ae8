"""A stand-in for a vLLM server: the routes that the trainer uses, scripted, with faults on demand. No model.

Its "weights" are one number; the log-probability of every token is minus that number, so a test sees which weights
made a token. Token t of a request is a function of (seed, t).
"""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
import weakref
from collections import Counter
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from dapo.engines.vllm_worker import WeightWorker
from dapo.models.checksum import checksum

LOADED_AT_START = 0.5  # the number in a server that nothing was published to


def held_port() -> socket.socket:
    """A port at which servers may listen, one after another, and which nobody else is given before, between or after:
    this socket has it, and does not listen itself."""
    one = socket.socket()
    for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
        one.setsockopt(socket.SOL_SOCKET, option, 1)
    one.bind(("127.0.0.1", 0))
    return one


class Life:
    """From one start to the next kill: a connection of an earlier life is not answered in the next."""

    def __init__(self) -> None:
        self.alive, self.sockets = True, set[socket.socket]()


class StandIn:
    def __init__(self, **options: Any) -> None:
        self.options = {
            "dev": True, "scale_out": True, "raw": None, "context": 64, "rows": 40, "extension": True,
            "priority": True, "key": None, "config": {}, "strange": [], "spoil": {},
        } | options  # fmt: skip
        self.generated: list[dict[str, Any]] = []
        self.routes = Counter[str]()
        self.loads = 0
        self.order: list[str] = []
        self.hold = False  # requests stand after ``partial`` tokens
        self.partial = 2
        self.delay = 0.0  # seconds before every answer
        self.answers: list[tuple[int, Any]] = []  # given to the next generate requests instead of a response
        self.drops = 0  # so many of the next generate requests lose their connection
        self.deadly = 0  # so many of the next generate requests kill it, and something starts it again
        self.faults: list[tuple[str, int]] = []  # (route, status instead of an answer; 0: the connection is lost)
        self.unasked_aborts = 0
        self.logprob: float | None = None  # of the fourth token
        self.cached: int | None = None  # tokens of each prompt that it says it had computed already
        self.turn = threading.Lock()  # requests are answered by threads, and each fault is for one of them
        self.ill = False
        held = held_port()
        weakref.finalize(self, held.close)
        self.port = held.getsockname()[1]
        self.start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Also: start again, at the same port, knowing nothing."""
        self.paused = False
        self.forget()
        self.aborted: set[str] = set()
        self.life = life = Life()
        stand_in = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                life.sockets.add(self.request)
                if not life.alive:  # accepted while it died
                    stand_in.reset(self.request)

            def log_message(self, *_: Any) -> None:
                pass

            def do_GET(self) -> None:
                stand_in.serve(self, life, None)

            def do_POST(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                raw = self.rfile.read(length)
                stand_in.serve(self, life, json.loads(raw) if raw else None)

        class Server(ThreadingHTTPServer):
            daemon_threads, block_on_close, request_queue_size = True, False, 512
            allow_reuse_address = allow_reuse_port = True

            def handle_error(self, *_: Any) -> None:
                pass

        self.server = Server(("127.0.0.1", self.port), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def kill(self) -> None:
        """Gone from one moment to the next, all connections reset."""
        life = self.life
        life.alive = False
        self.server.shutdown()
        self.server.server_close()
        for one in list(life.sockets):
            self.reset(one)

    @staticmethod
    def reset(one: socket.socket) -> None:
        with suppress(OSError):
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            one.shutdown(socket.SHUT_RDWR)
            one.close()

    def forget(self) -> None:
        """Restarted so fast that no connection noticed."""
        self.label, self.value, self.cache = "default", LOADED_AT_START, LOADED_AT_START
        self.worker = WeightWorker()

    # ------------------------------------------------------------------ routes

    def due(self, name: str) -> bool:
        """Whether one of so many is left, and this request is the one."""
        with self.turn:
            left = getattr(self, name)
            setattr(self, name, max(0, left - 1))
        return left > 0

    def serve(self, handler: Any, life: Life, body: Any) -> None:
        path = handler.path.partition("?")[0]
        with self.turn:
            self.routes[path] += 1
            self.order.append(handler.path)
        if self.delay:
            time.sleep(self.delay)
        asks = path == "/inference/v1/generate" and len(body["token_ids"]) > 1
        if asks and self.due("drops"):
            handler.close_connection = True
            return self.reset(handler.request)
        if asks and self.due("deadly"):
            self.generated.append(body)
            threading.Thread(target=lambda: (self.kill(), self.start())).start()
            return None
        with self.turn:
            fault = next((one for one in self.faults if one[0] == path), None)
            if fault is not None:
                self.faults.remove(fault)
        if fault is not None and not fault[1]:
            handler.close_connection = True
            return self.reset(handler.request)
        key = self.options["key"]
        if fault is not None:
            status, answer = fault[1], "out of order"
        elif path.startswith(("/v1", "/inference")) and key and handler.headers["Authorization"] != f"Bearer {key}":
            status, answer = 401, {"error": "Unauthorized"}
        else:
            status, answer = self.answer(path, handler.path, body)
        if not life.alive:
            handler.close_connection = True
            return None
        answer = self.options["spoil"].get(path, answer)
        raw = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
        handler.send_response(status)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(raw)))
        handler.end_headers()
        handler.wfile.write(raw)
        return None

    def answer(self, path: str, full: str, body: Any) -> tuple[int, Any]:
        if path == "/health":
            return (503 if self.ill else 200), {}
        if path == "/v1/models":
            return 200, {"data": [{"id": "m", "max_model_len": self.options["context"]}]}
        if path == "/inference/v1/generate":
            if not self.options["scale_out"]:
                return 403, {"error": {"message": "Scale-out endpoints are disabled."}}
            return self.generate(body)
        if path == "/inference/v1/abort_requests":
            self.aborted.update(body["request_ids"])
            return 200, {}
        if not self.options["dev"]:
            return 404, {"detail": "Not Found"}
        if path == "/weight_info":
            return 200, {"weight_version": self.label}
        if path in ("/pause", "/resume"):
            self.paused = path == "/pause"
            return 200, {}
        if path == "/is_paused":
            return 200, {"is_paused": self.paused}
        if path == "/reset_prefix_cache":
            self.cache = self.value
            return 200, {"success": True}
        if path == "/update_weight_version":
            self.label = body["new_version"]
            return 200, {}
        if path == "/collective_rpc":
            return self.collective_rpc(body)
        return 404, {"detail": "Not Found"}

    def collective_rpc(self, body: Any) -> tuple[int, Any]:
        method = body["method"]
        if method != "reload_weights" and not self.options["extension"]:
            return 500, {"error": {"message": f"Worker failed: 'CPUWorker' object has no attribute '{method}'"}}
        if method in ("claim_server", "release_server"):
            return 200, {"results": [getattr(self.worker, method)(**body["kwargs"])]}
        if method == "model_facts":
            return 200, {"results": [self.options["config"]]}
        if method == "weight_sums":
            sums = {name: ["float32", checksum(torch.tensor(self.value))] for name in body["kwargs"]["shapes"]}
            return 200, {"results": [{"sums": sums, "unread": [], "strange": self.options["strange"], "stale": []}]}
        self.loads += 1
        folder = body["kwargs"]["weights_path"]
        file = Path(folder) / "model.safetensors"
        if self.options.get("blind") or not file.exists():
            return 500, {"error": {"message": f"Worker failed: no such folder {folder}"}}
        with safe_open(file, framework="pt") as tensors:
            self.value = float(tensors.get_tensor("value"))
        return 200, {"results": [None]}

    def generate(self, body: Any) -> tuple[int, Any]:
        probe = len(body["token_ids"]) == 1
        if not probe:
            self.generated.append(body)
        if max(body["token_ids"]) >= self.options["rows"]:
            return 400, {"error": {"message": f"Token id {max(body['token_ids'])} is out of vocabulary"}}
        if "priority" in body and not self.options["priority"]:
            return 400, {"error": {"message": "Got priority 1 but priority scheduling is not enabled"}}
        with self.turn:
            if self.answers and not probe:
                return self.answers.pop(0)
        sampling, name = body["sampling_params"], f"generate-tokens-{body.get('request_id', 'x')}"
        tokens = [(sampling["seed"] * 31 + t * 7 + t * t) % 37 + 2 for t in range(sampling["max_tokens"])]
        stops = [t for t, token in enumerate(tokens) if token in sampling.get("stop_token_ids", ())]
        tokens, finish = (tokens[: stops[0] + 1], "stop") if stops else (tokens, "length")
        made = [self.made() for _ in tokens[: self.partial]]
        life = self.life
        while (self.hold or self.paused) and life.alive and name not in self.aborted:
            time.sleep(0.01)
        if name in self.aborted or self.due("unasked_aborts"):
            tokens, finish = tokens[: self.partial], "abort"
        made += [self.made() for _ in tokens[len(made) :]]
        logprobs = [value for _, value in made]
        if probe:
            logprobs = [0.0 if self.options["raw"] is None else self.options["raw"]] * len(tokens)
        if self.logprob is not None and len(tokens) > 3:
            logprobs[3] = self.logprob
        spans = [{"version": label, "start": t, "end": t + 1} for t, (label, _) in enumerate(made)]
        content = [{"token_id": token, "logprob": logprobs[t]} for t, token in enumerate(tokens)]
        choice = {"token_ids": tokens, "logprobs": {"content": content}, "finish_reason": finish}
        told = {} if self.cached is None else {"usage": {"prompt_tokens_details": {"cached_tokens": self.cached}}}
        return 200, {"choices": [choice | {"weight_versions": spans}], **told}

    def made(self) -> tuple[str, float]:
        """Label and log-probability of a token made now; a cache of other weights spoils the number."""
        return self.label, -self.value - 100.0 * abs(self.value - self.cache)
