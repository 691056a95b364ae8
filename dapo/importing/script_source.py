"""Launch scripts: the settings that a bash script gives to a trainer, as ``key=value`` or ``--flag value``.

Read as text. Variables and arrays that are set to constants are put in; what a command, an argument or the environment
would decide is listed instead, and nothing is run.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from dapo.errors import RecipeError
from dapo.importing.given import MOST_SETTINGS, Source
from dapo.importing.shell_words import LONGEST, SEPARATORS, UNKNOWN, Names, Reader, logical_lines
from dapo.importing.values import from_text

_ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_SETTING = re.compile(r"[+~]{0,2}([A-Za-z_][\w/@-]*(?:\.[\w@-]+)*)=(.*)", re.DOTALL)
_SENTENCE = re.compile(r"\s*(?:- )?[A-Z][\w,-]*(?: [^\s=]+){8,}$")
_A_PAGE = 3  # sentences; a script has one or two, in a quotation
APART = "copy a page's YAML block, command or Python into a file of its own (.yaml, .sh, .py), and import that"
_OPENING = {"if": 1, "for": 1, "while": 1, "until": 1, "case": 1, "fi": -1, "done": -1, "esac": -1}
_WORDS = {"then", "else", "elif", "do", "{", "}", "!", "time", "nohup", "exec", "function"}
_DEVICES = {"NPROC_PER_NODE", "nproc_per_node", "num_processes", "nproc-per-node"}
_PROGRAMS = {"python", "python3", "torchrun", "swift", "trl", "uv", "accelerate", "deepspeed"}
_CONFIGS = {"config", "config_file", "config_path", "config_name"}


def read_script(text: str, name: str, base: Callable[[str], Source | None]) -> Source:
    """A source from a launch script.

    Args:
        text: the script.
        name: for messages.
        base: reads the YAML file that the launch names, if it lies there.
    """
    if "\0" in text:
        raise RecipeError(f"{name} holds a NUL character, which no script does")
    script = _Script(name, base)
    lines = logical_lines(text)
    n = 0
    while n < len(lines):
        number, line = lines[n]
        n += 1
        while _open(line) and n < len(lines):  # an array or a quotation over several lines
            line += "\n" + lines[n][1]
            n += 1
            if len(line) > 10 * LONGEST:
                raise RecipeError(f"{name}: line {number} opens a quotation or an array that does not end")
        script.line(number, line)
    source = script.chosen()
    if len(prose := [line for line in text.splitlines() if _SENTENCE.match(line)]) >= _A_PAGE:
        source.unresolved.append(
            (f"{len(prose)} lines of prose, the first {prose[0][:60]!r}", f"{name} is a page: {APART}")
        )
    return source


def _open(line: str) -> bool:
    plain = re.sub(r"\\.|'[^']*'", "", line)
    in_quotes = plain.count('"') % 2 == 1
    bare = re.sub(r'"[^"]*"', "", plain)
    return in_quotes or (bool(re.search(r"\w\+?=\(", bare)) and bare.count("(") > bare.count(")"))


class _Script:
    def __init__(self, name: str, base: Callable[[str], Source | None]) -> None:
        self.name, self.base = name, base
        self.names, self.depth = Names(), 0
        self.launches: list[Source] = []
        self.devices: int | None = None

    def line(self, number: int, line: str) -> None:
        """Read one logical line."""
        command: list[str] = []
        array: list[str] | None = None
        self.names.reasons = []
        words = Reader(line, self.names).words()
        for word in [*words, "\n"]:
            if array is not None:
                if word == "array)":
                    self._set_array(array[0], array[1:])
                    array = None
                else:
                    array.append(word)
            elif re.fullmatch(r"\w+\+?=\(", word):
                array = [word]
            elif word in SEPARATORS:
                self._command(number, command)
                command = []
            else:
                command.append(word)

    def _set_array(self, name: str, words: list[str]) -> None:
        plain, more = name.rstrip("(").rstrip("=").rstrip("+"), "+=" in name
        if self.depth:
            self.names.unsure[plain] = "it is set inside of an if or a loop"
        self.names.arrays[plain] = [*(self.names.arrays.get(plain, []) if more else []), *words]
        if sum(map(len, self.names.arrays[plain])) > 10 * LONGEST:
            raise RecipeError(f"{self.name}: the array {plain} grows beyond {10 * LONGEST:,} characters")

    def _command(self, number: int, words: list[str]) -> None:
        while words and (words[0] in _OPENING or words[0] in _WORDS):
            self.depth = max(0, self.depth + _OPENING.get(words[0], 0))
            if words[0] in ("for", "case"):
                if words[0] == "for" and len(words) > 1:
                    self.names.unsure[words[1]] = "a loop sets it"
                return
            words = words[1:]
        while words and words[0] in ("export", "declare", "local", "readonly", "env", "set", "-x", "-a"):
            words = words[1:]
        while words and (match := _ASSIGNED.fullmatch(words[0])):
            self._assign(match[1], match[2], match[3])
            words = words[1:]
        if len(words) > 1 and not words[0].startswith("["):
            self._launch(number, words)

    def _assign(self, name: str, more: str, text: str) -> None:
        before = self.names.texts.get(name)
        if UNKNOWN in text:
            self.names.unsure[name] = "; ".join(self.names.reasons[-1:]) or "it is not constant"
            return
        if self.depth and before != text:
            self.names.unsure[name] = "it is set inside of an if or a loop"
        elif not more:
            self.names.unsure.pop(name, None)
        self.names.texts[name] = (before or "") + text if more else text
        if len(self.names.texts[name]) > LONGEST:
            raise RecipeError(f"{self.name}: the variable {name} grows beyond {LONGEST:,} characters")
        if name in _DEVICES and text.isdigit():
            self.devices = int(text)

    def _launch(self, number: int, words: list[str]) -> None:
        launch = Source(self.name, "a launch script", devices=self.devices)
        place, n = f"line {number}", 0
        while n < len(words):
            word = words[n]
            n += 1
            if word.startswith("--") and len(word) > 2:
                flag, equals, text = word[2:].partition("=")
                values = [text] if equals else []
                while not equals and n < len(words) and not _ends_values(words[n]):
                    values.append(words[n])
                    n += 1
                self._flag(launch, flag, values, place)
            elif match := _SETTING.fullmatch(word):
                self._take(launch, match[1].replace("/", "."), match[2], place)
            else:
                launch.words |= set(re.split(r"[^\w-]+", word)) | {word}
                if word in _PROGRAMS or word.endswith(".py") or words[n - 2] == "-m":
                    launch.settings, launch.unresolved = {}, []  # what went before was for whatever starts it
                if word.endswith((".yaml", ".yml")):
                    self._base(launch, word, place)
        if launch.settings or launch.unresolved:
            self.launches.append(launch)

    def _flag(self, launch: Source, flag: str, values: list[str], place: str) -> None:
        if flag in _DEVICES and values and values[0].isdigit():
            launch.devices = int(values[0])
            return
        if flag in _CONFIGS and values and values[0].endswith((".yaml", ".yml")):
            self._base(launch, values[0], place)
            values = values[1:]
            if not values:
                return
        # `torchrun --standalone train.py`: the script is no value of the flag
        launch.words |= {word for value in values for word in re.split(r"[^\w-]+", value)}
        if len(values) == 1 or not values:
            self._take(launch, flag.replace("-", "_"), values[0] if values else "true", place)
        else:
            self._take_list(launch, flag.replace("-", "_"), values, place)

    def _take_list(self, launch: Source, key: str, values: list[str], place: str) -> None:
        if any(UNKNOWN in value for value in values):
            self._unresolved(launch, key, " ".join(values))
        else:
            launch.add(key, [from_text(value) for value in values], place)

    def _take(self, launch: Source, key: str, text: str, place: str) -> None:
        if UNKNOWN in text:
            self._unresolved(launch, key, text)
        else:
            launch.add(key, from_text(text), place)
        if len(launch.settings) > MOST_SETTINGS:
            raise RecipeError(f"{self.name}: more than {MOST_SETTINGS:,} settings in one command")

    def _unresolved(self, launch: Source, key: str, text: str) -> None:
        why = "; ".join(dict.fromkeys(self.names.reasons)) or "known only when it runs"
        launch.unresolved.append((f"{key}={text.replace(UNKNOWN, '...')}", why[:300]))

    def _base(self, launch: Source, path: str, place: str) -> None:
        below = self.base(path) if UNKNOWN not in path else None
        if below is None:
            launch.unresolved.append((f"{path.replace(UNKNOWN, '...')}, {place}", "a file that is not there to read"))
            return
        above = dict(launch.settings)
        launch.settings = {**below.settings, **above}
        launch.unresolved += below.unresolved

    def chosen(self) -> Source:
        """The command with the most settings; the others are listed."""
        if not self.launches:
            return Source(self.name, "a launch script")
        best = max(self.launches, key=lambda launch: len(launch.settings))
        best.devices = best.devices or self.devices
        for other in self.launches:
            if other is not best and any("." in key for key in other.settings):
                best.unresolved.append(
                    (f"a command with {len(other.settings)} further settings", "another command of the script")
                )
        return best


def _ends_values(word: str) -> bool:
    """Whether a word is no value of the flag before it. A number may have a minus."""
    match = _SETTING.fullmatch(word)
    setting = match is not None and "." in match[1]
    return setting or word.endswith(".py") or re.match(r"--?[A-Za-z]|--$", word) is not None
