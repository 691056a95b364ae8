"""Short messages for Ray's errors, and the next move. Imports no Ray."""

from __future__ import annotations

NOT_LEFT = (
    "this program still waits for an answer of a Ray cluster whose head hangs, and Ray joins no other one "
    "before: give the command in a new program"
)


def brief(error: Exception) -> str:
    """Return the first words of a long message."""
    if type(error).__name__ == "ActorUnavailableError":  # "temporarily", in Ray's words: it is given up
        return "its connection ended, as it does when its machine is lost"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = " ".join(line for line in lines if ":" not in line[:16])[:240] or type(error).__name__
    return said.rstrip(". ")


def unreachable(address: str, why: str) -> str:
    """Return the next move for a cluster that cannot be joined."""
    return (
        f"the Ray cluster at {address} cannot be joined: {why}. The driver has to run on a machine of the cluster "
        "(`ray start --address=HOST:PORT` adds one); cluster.address=null without RAY_ADDRESS starts a cluster of "
        "this machine alone"
    )
