"""A Ray cluster of this machine alone, for one program: a guard ends all of it afterwards.

Ray's processes find each other in a folder with a short path (their sockets' names may have 107 letters). They listen
on the machine's own address and would run whatever is sent, so they take calls with a token alone, which this
program makes up. Ray reads whether there is one when it is imported: nothing here imports it.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import shutil
import sys
import tempfile
from pathlib import Path

from dapo.errors import ClusterError
from dapo.processes.guarded import GuardedProcess
from dapo.processes.left_over import claim, delete_left, leave
from dapo.system import core_count

log = logging.getLogger(__name__)

_HEAD = "import sys; from dapo.processes.ray import be_head; be_head(int(sys.argv[1]))"
_PREFIX = "dapo-ray-"
_PATIENCE = 10.0  # seconds for the guard to end what it guards
_ATTEMPTS = 5
"""Ray gives its own processes half a minute to start, which no setting of its changes, and then ends; they are slower
where other programs keep all processors busy."""
_LONGEST = 24  # letters of the folder that the folder is in
FOLDER = "DAPO_RAY_FOLDER"
"""Variable that names the head its folder."""
_TOKEN = secrets.token_hex(32)
"""One for the life of this program: Ray's libraries read it once."""
OUTLIVING = "RAY_gcs_rpc_server_reconnect_timeout_s"
TOLD = "RAY_task_events_report_interval_ms"
"""By default each call is reported to the head, for Ray's dashboard, which dapo's cluster lacks; the head keeps
4 KiB of it."""
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_enable_metrics_collection": "0",
    "RAY_prestart_worker_first_driver": "0",  # hosts have processes of their own; none is kept ready
    "RAY_worker_niceness": "0",  # as processes without Ray
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


class OwnCluster:
    """The cluster's head, which is all of it. Made before anything imports ray.

    Attributes:
        address: where it is joined.
        folder: of its files.

    Raises:
        ClusterError: it does not start.
    """

    def __init__(self) -> None:
        for folder in {Path(tempfile.gettempdir()), Path("/tmp")}:
            delete_left(folder, _PREFIX)
        outlive_head()
        if "ray" not in sys.modules:
            os.environ.setdefault("RAY_AUTH_MODE", "token")
            os.environ.setdefault("RAY_AUTH_TOKEN", _TOKEN)
            os.environ.setdefault(TOLD, "0")  # of this program's calls, and by inheritance of all others
        elif os.environ.get("RAY_AUTH_MODE") != "token":
            log.warning(
                "ray was imported before, without RAY_AUTH_MODE=token: the cluster that is started now takes calls "
                "from everybody who reaches this machine"
            )
        for attempt in range(1, _ATTEMPTS + 1):
            self.address, said = self._start()
            if self.address:
                return
            if attempt < _ATTEMPTS:
                log.warning("the Ray cluster of this machine did not start: %s. It is tried again", said)
        raise ClusterError(_unstarted(said))

    def _start(self) -> tuple[str, str]:
        """Its address; "" if it ended first, and its last line."""
        parent = tempfile.gettempdir() if len(tempfile.gettempdir()) <= _LONGEST else "/tmp"
        self.folder = claim(lambda: tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=parent))
        output = Path(self.folder) / "head.txt"
        command = [sys.executable, "-P", "-c", _HEAD]
        try:
            with output.open("ab") as sink:
                self._guarded = GuardedProcess(lambda end: [*command, str(end)], sink, {**_QUIET, FOLDER: self.folder})
        except OSError as error:
            self._leave()
            raise ClusterError(f"no Ray cluster can be started here: {error}") from error
        address = said = ""
        try:
            address = self._said()
            if not address:
                said = (output.read_text(errors="replace").strip().splitlines() or ["it said nothing"])[-1].rstrip(".")
        finally:
            if not address:
                self.close()
        return address, said

    def close(self) -> None:
        """End all of its processes, and delete its files."""
        self._guarded.kill()
        self._guarded.exit_code(_PATIENCE)  # a guard that needs longer for Ray's many processes goes on alone
        self._guarded.connection.close()
        self._leave()

    def _leave(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        leave(self.folder)

    def _said(self) -> str:
        """Its address; "" if it ended first."""
        with self._guarded.connection.makefile("r") as said:
            line = said.readline()
        return str(json.loads(line)) if line else ""


def outlive_head() -> None:
    """Let this program, and a cluster that it starts, do without a head for as long as a step may take. Call it before
    ray is imported: by Ray's default each process ends itself a minute after the head."""
    os.environ.setdefault(OUTLIVING, "86400")
    for name in ("RAY_USAGE_STATS_ENABLED", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"):
        os.environ.setdefault(name, "0")


def _unstarted(said: str) -> str:
    """Return what was tried, and the next move."""
    cores = core_count()
    return (
        f"the Ray cluster of this machine did not start in {_ATTEMPTS} attempts; the last one ended with: {said}. "
        "Ray waits half a minute for its processes, which may be too little on a busy machine (load average "
        f"{os.getloadavg()[0]:.1f}, {cores} {'core' if cores == 1 else 'cores'}): try again when it is less busy; or "
        "start the cluster beforehand (`ray start --head`) and name it, cluster.address=HOST:PORT; or use "
        "launch.backend=local, which needs no Ray"
    )
