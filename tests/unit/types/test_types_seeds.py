"""Random numbers by name: the values that every recorded run was made with."""

from __future__ import annotations

import numpy as np

from dapo.types.batch import Key, Response, SampleRequest, SamplingParams
from dapo.types.seeds import derive_seed, derive_seeds, generator_seed, stream_keys, uniforms

NONE = np.empty(0, np.int64)


def request(made: int) -> SampleRequest:
    prefix = Response(np.arange(made), np.zeros(made, np.float32), np.zeros(made, np.int32)) if made else None
    return SampleRequest(Key("train", 0, 0), NONE, SamplingParams(8), 12345, prefix)


def test_seeds_are_those_of_the_first_release() -> None:
    assert derive_seed(1, 1, 0, 0) == 2494087913665914258
    assert derive_seed(1, 2, 3, 4) == 2189919993020464342
    assert (derive_seed(0), derive_seed(-1, 7)) == (3980143261097177850, 8662288158603623646)
    assert derive_seeds(7, 4, 5, count=2) == [2424179178156175826, 5506247977168103499]
    assert derive_seeds(7, 4, 5, count=2) == [derive_seed(7, 4, 5, 0), derive_seed(7, 4, 5, 1)]


def test_numbers_behind_tokens_are_those_of_the_first_release() -> None:
    keys = stream_keys([0, 1, 2**63 - 1])
    assert keys.tolist() == [16294208416658607535, 10451216379200822465, 3055647633038352039]
    found = [number.hex() for number in uniforms(keys, np.array([0, 1, 1000])).tolist()]
    assert found == ["0x1.4e0dba5e9a32fp-1", "0x1.e31ad9d27ad9fp-1", "0x1.0a63382422b86p-2"]


def test_engines_with_generators_of_their_own_start_where_they_did() -> None:
    assert generator_seed(request(0)) == 3026841259491829929
    assert generator_seed(request(3)) == 8677345726821389117
