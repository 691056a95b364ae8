"""A GGUF file as a model: its numbers dequantised once into an ordinary Hugging Face folder of the user's cache.

GGUF is llama.cpp's format: configuration, tokenizer, chat template and (mostly quantised) weights in one file.
transformers reads many architectures of it, through the package gguf. The folder keeps the dequantised numbers in
float32, so that a run in any precision rounds once, and from the same values.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from dapo.errors import ModelError, NotInstalled, first_line, raise_for_machine
from dapo.links import install
from dapo.models.cached import make_once
from dapo.models.quiet import quiet_transformers

ENDING, WHEEL = ".gguf", ".whl"
_MAGIC = b"GGUF"
_BYTES = 4  # of a number in float32
_ENDS = ("eos", "eot")  # of the text, and of a turn
_TOKENS = {"bos": "bos_token", "eos": "eos_token", "padding": "pad_token"}
"""Special tokens by their names in GGUF (``tokenizer.ggml.NAME_token_id``) and in transformers."""


@dataclass(frozen=True, slots=True)
class GgufFile:
    """A GGUF file on the disk, or ``member`` of a wheel, which is an archive."""

    path: Path
    member: str | None = None

    @property
    def name(self) -> str:
        return Path(self.member or self.path).name


def is_gguf(name: str) -> bool:
    """Return whether a recipe's ``model.path`` names a GGUF file: ``FILE.gguf``, ``WHEEL.whl`` with one in it, or
    ``WHEEL.whl/PATH/IN/IT.gguf``."""
    return name.endswith((ENDING, WHEEL)) and not Path(name).expanduser().is_dir()


def check_gguf(name: str) -> GgufFile:
    """Return the file that a ``model.path`` names, as far as it can be judged without reading it.

    Raises:
        ModelError: it is not there or not GGUF, or a wheel has none or several.
        NotInstalled: the package gguf is missing.
    """
    wheel, inside, member = name.partition(WHEEL + "/")
    path = Path(wheel + WHEEL if inside else name).expanduser()
    try:
        if path.suffix == WHEEL:
            found = GgufFile(path, _member(path, member, name))
            with zipfile.ZipFile(path) as archive, archive.open(str(found.member)) as file:
                begins = file.read(len(_MAGIC))
        else:
            found = GgufFile(path)
            with path.open("rb") as file:
                begins = file.read(len(_MAGIC))
    except FileNotFoundError:
        raise ModelError(f"model.path {name!r} is not here; check the path") from None
    except (OSError, zipfile.BadZipFile, RuntimeError) as error:
        raise ModelError(f"model.path {name!r} cannot be read ({first_line(error)}); fetch it again") from error
    if begins != _MAGIC:
        raise ModelError(f"model.path {name!r} is no GGUF file (it begins with {begins!r}); fetch it again")
    if find_spec("gguf") is None:
        raise NotInstalled(f"model.path {name!r} is a GGUF file, which needs the package gguf: {install('gguf')}")
    return found


def _member(path: Path, asked: str, name: str) -> str:
    with zipfile.ZipFile(path) as archive:
        there = [one for one in archive.namelist() if one.endswith(ENDING)]
    if asked in there or (not asked and len(there) == 1):
        return asked or there[0]
    has = ", ".join(there[:5]) or "none"
    raise ModelError(
        f"model.path {name!r}: {path.name} holds {len(there)} GGUF files ({has}); name one: "
        f"model.path={path}/{there[0] if there else 'FILE.gguf'}"
    )


def dequantised(name: str, cache: Path, say: Callable[[str], None]) -> Path:
    """Return the Hugging Face folder of a GGUF file, made first if the cache does not hold it.

    The folder's name carries a hash of the file, of this code and of the versions that read it.

    Args:
        name: as ``model.path``, see ``is_gguf``.
        cache: holds the folders of all models that were made here.
        say: hears in one line where the folder is, and before it is made, what that costs.

    Raises:
        ModelError: the file is damaged, is a part of several, or of an architecture that transformers does not read.
        NotInstalled: the package gguf is missing.
        DiskError: the cache has no room.
    """
    source = check_gguf(name)
    folder = (cache / f"{source.name.removesuffix(ENDING)}-{_fingerprint(source)}").absolute()
    if folder.is_dir():
        say(f"the weights of {source.name}, dequantised, are in {folder}")
        return folder

    def make(unfinished: Path) -> None:
        try:
            with _alone(source, unfinished.parent / f"{unfinished.name}-source") as place:
                _convert(place, source.name, unfinished, folder, say)
        except ModelError:
            raise
        except Exception as error:  # gguf and transformers raise ValueError, KeyError, NotImplementedError and others
            raise_for_machine(error, f"dequantising {name!r}")
            raise ModelError(
                f"model.path {name!r} cannot be read as a causal language model: {first_line(error)}; expected a "
                "GGUF file of an architecture that this transformers reads, or give a folder with safetensors"
            ) from error

    return make_once(folder, make)


def _fingerprint(source: GgufFile) -> str:
    digest = hashlib.sha256(f"{source.member} {version('transformers')} {version('gguf')}".encode())
    digest.update(Path(__file__).read_bytes())
    with source.path.open("rb") as file:
        digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:12]


@contextmanager
def _alone(source: GgufFile, place: Path) -> Iterator[Path]:
    """Yield a folder with the file and nothing else: transformers would prefer other files beside it."""
    place.mkdir()
    try:
        if source.member is None:
            os.symlink(source.path.absolute(), place / source.name)
        else:
            with (
                zipfile.ZipFile(source.path) as archive,
                archive.open(source.member) as packed,
                (place / source.name).open("wb") as file,
            ):
                shutil.copyfileobj(packed, file, 1 << 20)
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _convert(place: Path, file: str, out: Path, shown: Path, say: Callable[[str], None]) -> None:
    """Write the model and its tokenizer to ``out``; ``shown`` is where they will lie."""
    from gguf import GGUFReader
    from transformers import AutoModelForCausalLM, AutoTokenizer

    reader = GGUFReader(place / file)
    said = {key: field.contents() for key, field in reader.fields.items() if _is_needed(key)}
    numbers = sum(int(tensor.n_elements) for tensor in reader.tensors)
    if said.get("split.count", 0) > 1:
        raise ModelError(
            f"{file} is one of {said['split.count']} parts: join them first (`llama-gguf-split --merge FIRST OUT`)"
        )
    say(f"dequantising {file} once, {numbers / 1e6:,.0f} million weights: {numbers * _BYTES / 1e6:,.0f} MB in {shown}")
    free = shutil.disk_usage(out).free
    if free < numbers * _BYTES:
        raise ModelError(
            f"{shown.parent} has {free / 1e6:,.0f} MB of room; set DAPO_CACHE to a folder with more, or make some"
        )
    # The bar that transformers draws here is none of those that can be switched off.
    with quiet_transformers(), redirect_stderr(io.StringIO()), torch.random.fork_rng(devices=[]):
        tokenizer = AutoTokenizer.from_pretrained(place, gguf_file=file)
        model = AutoModelForCausalLM.from_pretrained(place, gguf_file=file, dtype=torch.float32)
        _mark_ends(model, tokenizer, said)
        _plain(model).save_pretrained(out)
        tokenizer.save_pretrained(out)
    _drop_unknown(out / "tokenizer.json", len(reader.fields["tokenizer.ggml.tokens"].data))
    for tensors in out.glob("*.safetensors"):  # safetensors makes its files the owner's alone
        shutil.copymode(out / "config.json", tensors)


def _is_needed(key: str) -> bool:
    return key == "split.count" or (key.startswith("tokenizer.ggml.") and key.endswith("_token_id"))


def _mark_ends(model: Any, tokenizer: Any, said: dict[str, Any]) -> None:
    """Set special tokens to those that the file names: transformers guesses some of them, and an end token that no
    response has is never sampled."""
    ids = {key.removeprefix("tokenizer.ggml.").removesuffix("_token_id"): value for key, value in said.items()}
    for theirs, ours in _TOKENS.items():
        if theirs in ids:
            setattr(tokenizer, ours, tokenizer.convert_ids_to_tokens(int(ids[theirs])))
    ends = list(dict.fromkeys(int(ids[name]) for name in _ENDS if name in ids))
    if ends:
        model.config.eos_token_id = model.generation_config.eos_token_id = ends if len(ends) > 1 else ends[0]


def _drop_unknown(file: Path, count: int) -> None:
    """Take out of a tokenizer what the GGUF file, with its ``count`` tokens, does not have: classes of transformers
    add special tokens of their own, which may have no row in the embedding."""
    content = json.loads(file.read_text(encoding="utf-8"))
    content["added_tokens"] = [token for token in content["added_tokens"] if token["id"] < count]
    file.write_text(json.dumps(content, ensure_ascii=False, indent=2), encoding="utf-8")


def _plain(model: Any) -> Any:
    """Return the same weights in a model that does not say that it is quantised: that one could not be saved."""
    config = model.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    with torch.device("meta"):
        plain = type(model)(config)
    plain.load_state_dict(model.state_dict(), assign=True)
    plain.tie_weights()
    plain.generation_config = model.generation_config
    return plain
