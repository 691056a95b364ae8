"""What travels by the thousand arrives equal, whatever the class."""

from __future__ import annotations

import pickle
from dataclasses import fields

import numpy as np
from each import each

from dapo.engines.host import TurnResult
from dapo.types.batch import Key, Response, Row, SampleRequest, SamplingParams
from dapo.types.enums import FinishReason

MADE = np.array([7, 2]), np.float32([-0.1, -0.4]), np.int32([3, 3])
UNFINISHED = Response(*MADE, generated=np.array([True, False]), extra={"routing": np.int8([[1], [2]])})
FAILED = Response(*MADE, FinishReason.FAILED, key=Key("train", 3, 0), tick=5, reason="why", engine=2)
REQUEST = SampleRequest(Key("train", 3, 0), MADE[0], SamplingParams(8), 11, UNFINISHED, priority=4, engine=1, keep=True)
DONE = Response(*MADE, FinishReason.STOP, "7", answer="7", thinking=1, closed=False, scores={"won": 1.0})
ROW = Row(1, MADE[0], MADE[0], 2, np.array([True, False]), *MADE[1:], 0.5, -1.0, traced=True, part=3)


@each(
    "sent",
    [UNFINISHED, FAILED, REQUEST, DONE, ROW, TurnResult([FAILED], 4, {"slot_steps": 1.0}, 0.5)],
)
def test_every_field_arrives(sent):
    found = pickle.loads(pickle.dumps(sent, protocol=pickle.HIGHEST_PROTOCOL))
    assert type(found) is type(sent)
    for field in fields(sent):
        assert repr(getattr(found, field.name)) == repr(getattr(sent, field.name)), field.name
