"""The libraries that the page carries with it: which, from where, and whether they are still what they were.

``python tests/helpers/vendored.py`` fetches them again with ``npm pack`` and refuses what has another checksum.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dapo.errors import DataError

FOLDER = Path(__file__).resolve().parents[2] / "dapo" / "report" / "assets" / "vendor"
_SOURCE_MAP = re.compile(rb"\n?(//|/\*)# sourceMappingURL=[^\n*]*(\*/)?\n?")


@dataclass(frozen=True, slots=True)
class Library:
    """One package of npm, and the files taken from it."""

    package: str
    version: str
    licence: str
    home: str
    sha256: str  # of the tarball that ``npm pack`` gives
    files: tuple[tuple[str, str, str], ...]  # path in the tarball, name here, sha256 of the file here


LIBRARIES = (
    Library(
        "htm",
        "3.1.1",
        "Apache-2.0",
        "https://github.com/developit/htm",
        "2425b9bee11409177bcabc7f32e319926fc6690c1701c0b257c88bdff2d5ba90",
        (
            (
                "package/dist/htm.umd.js",
                "htm.min.js",
                "7a31776e04bd4afde0d4308177d26f377716fcf7e4bd70be590746d6aa594f08",
            ),
            ("package/LICENSE", "htm.LICENSE", "740725f7252e750af735d0028cc534970772f513331e9f68150fede8fb3ce00f"),
        ),
    ),
    Library(
        "uplot",
        "1.6.32",
        "MIT",
        "https://github.com/leeoniya/uPlot",
        "4b8a8191e425658e3ea8c8c1314b0fc679c861ee3a1af2b20c7b16ba50b5133d",
        (
            (
                "package/dist/uPlot.iife.min.js",
                "uplot.min.js",
                "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
            ),
            (
                "package/dist/uPlot.min.css",
                "uplot.min.css",
                "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
            ),
            ("package/LICENSE", "uplot.LICENSE", "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd"),
        ),
    ),
    Library(
        "tabulator-tables",
        "6.5.3",
        "MIT",
        "https://github.com/tabulator-tables/tabulator",
        "a3aeb833e5cf924c8a686fa6748c1070c5fde8e605e0b1734000c35b78571a9b",
        (
            (
                "package/dist/js/tabulator.min.js",
                "tabulator.min.js",
                "d55b66c4343599507915c64a6a16255b02229ca1eef1efcae2278938194c209b",
            ),
            (
                "package/dist/css/tabulator_simple.min.css",
                "tabulator.min.css",
                "20626e3feea130a004cdb8c1b98e715e3536cdf724023a037b435981f54da1da",
            ),
            (
                "package/LICENSE",
                "tabulator.LICENSE",
                "191a2ee554684e1064c897b432f0e1bc6dfa714ca045d3f6ea2cf692cbd398b7",
            ),
        ),
    ),
)


def without_source_map(content: bytes) -> bytes:
    """Return the file less its pointer to a source map, which a browser's tools would ask the network for."""
    return _SOURCE_MAP.sub(b"\n", content)


def checksum(content: bytes) -> str:
    """SHA-256, as hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def expect(content: bytes, sha256: str, name: str) -> bytes:
    """``content`` as it came. Raises ``DataError`` where its checksum is another."""
    if checksum(content) != sha256:
        raise DataError(
            f"{name} has the SHA-256 {checksum(content)}, expected {sha256}. If the new version is wanted, read what "
            "changed and write its sums into tests/helpers/vendored.py; otherwise do not use what was fetched."
        )
    return content


def fetch(library: Library, folder: Path = FOLDER) -> None:
    """Get one library from npm's registry and write its files. Needs npm. Raises ``DataError`` on another checksum."""
    with tempfile.TemporaryDirectory() as scratch:
        command = ["npm", "pack", "--silent", f"{library.package}@{library.version}"]
        name = subprocess.run(command, cwd=scratch, check=True, capture_output=True, text=True).stdout.split()[-1]
        tarball = Path(scratch, name)
        expect(tarball.read_bytes(), library.sha256, f"npm's {name}")
        with tarfile.open(tarball) as archive:
            for inside, here, sha256 in library.files:
                member = archive.extractfile(inside)
                if member is None:
                    raise DataError(f"{name} holds no file {inside}: it is a folder or a link")
                content = expect(without_source_map(member.read()), sha256, here)
                (folder / here).write_bytes(content)


def main(arguments: Sequence[str] | None = None) -> int:
    """Fetch everything again; with ``--check``, only compare the files here with their sums."""
    check = "--check" in (sys.argv[1:] if arguments is None else arguments)
    for library in LIBRARIES:
        if not check:
            fetch(library)
        for _, here, sha256 in library.files:
            expect((FOLDER / here).read_bytes(), sha256, here)
            print(f"{here}: {library.package} {library.version}, sum as expected")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
