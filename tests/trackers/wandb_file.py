"""W&B's run file: the log format of LevelDB, whose records are the messages of ``wandb.proto``.

wandb brings the messages along, and no reader of the file for Python.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK, HEADER = 32768, 7
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def records(file: Path) -> Iterator[Any]:
    """Every message of a ``run-ID.wandb``."""
    from wandb.proto.wandb_internal_pb2 import Record

    data = file.read_bytes()
    assert data[:4] == b":W&B", data[:7]
    at, parts = HEADER, b""
    while at + HEADER <= len(data):
        if BLOCK - at % BLOCK < HEADER:
            at += BLOCK - at % BLOCK  # the rest of a block that is too short for a record
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + HEADER])
        parts += data[at + HEADER : at + HEADER + length]
        at += HEADER + length
        if kind in (FULL, LAST):
            yield Record.FromString(parts)
            parts = b""
        else:
            assert kind in (FIRST, MIDDLE), kind


def history(file: Path) -> list[dict[str, Any]]:
    """What was logged, line by line."""
    return [
        {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        for record in records(file)
        if record.HasField("history")
    ]
