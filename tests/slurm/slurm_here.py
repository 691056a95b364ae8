"""A Slurm of two nodes on this host, for one test session: its own keys, state and configuration."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

PROGRAMS = ("munged", "mungekey", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "scancel")

# The ports are fixed, as Slurm takes no others than those in its file; they lie below those that the system gives out.
# cred_expire is also how long a job that was put back waits before it may start again: two minutes otherwise.
_CONFIGURATION = """
ClusterName=dapo
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=15
SlurmctldPort=16817
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
ReturnToService=2
MpiDefault=none
JobRequeue=1
KillWait=5
MinJobAge=600
SlurmdTimeout=60
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port=17001 CPUs=2 Sockets=1 CoresPerSocket=2 RealMemory=2000
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port=17002 CPUs=2 Sockets=1 CoresPerSocket=2 RealMemory=2000
PartitionName=main Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
"""


def why_not() -> str:
    """What is missing here for a Slurm of one's own; "" if nothing is."""
    if os.geteuid() != 0:
        return "a Slurm of two nodes on one host is started as root"
    missing = [name for name in PROGRAMS if _program(name) is None]
    return f"{', '.join(missing)} not found: apt-get install -y slurm-wlm munge" if missing else ""


def _program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")


@contextlib.contextmanager
def running(folder: Path) -> Iterator[dict[str, str]]:
    """Start everything, and end it. Gives the environment in which its commands find it, once both nodes work."""
    for name in ("state", "spool-n1", "spool-n2"):
        (folder / name).mkdir()
    folder.chmod(0o755)
    configuration = folder / "slurm.conf"
    configuration.write_text(_CONFIGURATION.format(host=socket.gethostname().partition(".")[0], folder=folder))
    environment = {**os.environ, "SLURM_CONF": str(configuration)}
    key = f"--key-file={folder}/munge.key"
    subprocess.run([_program("mungekey"), "--create", key.replace("key-file", "keyfile")], check=True)
    files = [f"--{name}={folder}/munge.{name.partition('-')[0]}" for name in ("socket", "pid-file", "seed-file")]
    with contextlib.ExitStack() as stack:

        def start(name: str, *options: str) -> subprocess.Popen:
            log = stack.enter_context(open(folder / f"{name}{options[-1].replace('/', '')[-8:]}.log", "wb"))
            command = [_program(name), *options]
            process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
            stack.callback(process.wait)
            stack.callback(process.terminate)
            return process

        start("munged", "--foreground", "--force", key, f"--log-file={folder}/munged.log", *files)
        start("slurmctld", "-D", "-c", "-v")
        for node in ("n1", "n2"):
            start("slurmd", "-D", "-N", node)
        subprocess.run(["srun", "-N2", "-n2", "true"], env=environment, stdin=subprocess.DEVNULL, check=True)
        yield environment
