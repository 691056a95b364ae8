"""Launch scripts: the settings that a bash script gives to a trainer, as ``key=value`` or ``--flag value``.

Read as text. Variables and arrays that are set to constants are put in; what a command, an argument or the environment
would decide is listed instead, and nothing is run. A command in a constant text (``COMMAND``, ``--wrap``, ``bash -c``)
is read as one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from dapo.errors import RecipeError
from dapo.importing.files import ENDINGS, OWN_DEFAULTS, SourceFiles, nearest_recipe
from dapo.importing.given import MOST_SETTINGS, SourceFile
from dapo.importing.shell_words import LONGEST, SEPARATORS, UNKNOWN, Names, Reader, logical_lines, open_quotation
from dapo.importing.slurm import KEY, options
from dapo.importing.values import from_text
from dapo.importing.yaml_source import read_yaml

_ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_SETTING = re.compile(r"[+~]{0,2}([A-Za-z_][\w/@-]*(?:\.[\w@-]+)*)=(.*)", re.DOTALL)
_SENTENCE = re.compile(r"\s*(?:- )?[A-Z][\w,-]*(?: [^\s=]+){8,}$")
_A_PAGE = 3  # sentences; a script has one or two, in a quotation
APART = "copy a page's YAML block, command or Python into a file of its own (.yaml, .sh, .py), and import that"
_OPENING = {"if": 1, "for": 1, "while": 1, "until": 1, "case": 1, "fi": -1, "done": -1, "esac": -1}
_WORDS = {"then", "else", "elif", "do", "{", "}", "!", "time", "nohup", "exec", "function"}
_DEVICES = {"NPROC_PER_NODE", "nproc_per_node", "num_processes", "nproc-per-node"}
_PROGRAMS = {"python", "python3", "torchrun", "swift", "trl", "uv", "accelerate", "deepspeed"}
_CONFIGS = {"config", "config_file", "config-file"}
_SHELLS = {"bash", "sh", "zsh", "source", "."}
_NESTED = 3  # commands that stand within each other's texts
_MOST_LAUNCHES = 1_000


@dataclass(slots=True)
class _Launch:
    """One command with settings."""

    source: SourceFile
    place: str  # "line 3"
    configurations: list[tuple[str, bool]] = field(default_factory=list)  # files that it names; by a flag
    hydra: dict[str, str] = field(default_factory=dict)  # config_path, config_name
    program: bool = False

    def begin(self) -> None:
        """Drop what was for whatever starts the program."""
        self.source.settings = {key: given for key, given in self.source.settings.items() if key.startswith(KEY)}
        self.source.unresolved, self.configurations, self.hydra, self.program = [], [], {}, True


def read_script(text: str, name: str, files: SourceFiles) -> SourceFile:
    """Read a source from a launch script.

    Args:
        text: the script.
        name: for messages.
        files: what reads the configuration that a command names.

    Raises:
        RecipeError: its configuration is not there, its command is not constant, or it has no end.
    """
    if "\0" in text:
        raise RecipeError(f"{name} holds a NUL character, which no script does")
    script = _Script(name, files)
    for directive in re.findall(r"(?m)^#SBATCH[ \t]+(.*)$", text)[:MOST_SETTINGS]:
        script.slurm |= options(Reader(directive, script.names).words())[0]
    lines = logical_lines(text)
    n = 0
    while n < len(lines):
        number, line = lines[n]
        n += 1
        parts, state, size = [line], _opened(line, ("", 0)), len(line)
        while state != ("", 0) and n < len(lines):  # an array or a quotation over several lines
            parts.append(lines[n][1])
            state, size = _opened(lines[n][1], state), size + len(lines[n][1]) + 1
            n += 1
            if size > 10 * LONGEST:
                raise RecipeError(f"{name}: line {number} opens a quotation or an array that does not end")
        script.line(number, "\n".join(parts))
    source = script.chosen()
    if len(prose := [line for line in text.splitlines() if _SENTENCE.match(line)]) >= _A_PAGE:
        source.cautions.append(f"{name} is a page: one command of it was read, and no block between its sentences")
        source.unresolved.append(
            (f"{len(prose)} lines of prose, the first {prose[0][:60]!r}", f"{name} is a page: {APART}")
        )
    return source


def _opened(line: str, state: tuple[str, int]) -> tuple[str, int]:
    """Return the mark of the quotation, and how many brackets of an array, are open after a line."""
    before, depth = state
    quote = open_quotation(line, before)
    if before:  # what ends the quotation begins the rest of the line
        _, closing, line = line.partition(before)
        if not closing:
            return quote, depth
    for part in re.sub(r"\\.|'[^']*'?|\"[^\"]*\"?", "\0", line).split("\0"):
        if depth or re.search(r"\w\+?=\(", part):
            depth = max(0, depth + part.count("(") - part.count(")"))
    return quote, depth


class _Script:
    def __init__(self, name: str, files: SourceFiles) -> None:
        self.name, self.files = name, files
        self.names, self.depth, self.nested = Names(), 0, 0
        self.launches: list[SourceFile] = []
        self.others: list[tuple[str, str]] = []  # scripts that a command runs, and where it stands
        self.slurm: dict[str, str] = {}  # options of sbatch, of the lines #SBATCH or of the command at hand
        self.devices: int | None = None

    def line(self, number: int, line: str) -> None:
        """Read one logical line."""
        self.names.reasons = []
        self._commands(number, Reader(line, self.names).words())

    def _commands(self, number: int, words: list[str]) -> None:
        command: list[str] = []
        array: list[str] | None = None
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
        if not more:
            self.names.arrays[plain] = []
        array = self.names.arrays.setdefault(plain, [])
        array += words
        if len(array) > 2 * MOST_SETTINGS:
            raise RecipeError(f"{self.name}: the array {plain} grows beyond {2 * MOST_SETTINGS:,} words")

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
        program = words[0].rpartition("/")[2] if words else ""
        options_of_shells = (n for n, word in enumerate(words) if word in ("-c", "-lc"))
        text = next((n for n in options_of_shells if words[n - 1].rpartition("/")[2] in _SHELLS), 0)
        if program == "sbatch":
            self._job(number, words[1:])
        elif text and text + 1 < len(words):
            self._inside(number, words[text + 1], f"{words[text - 1]} -c")
        elif program in _SHELLS and len(words) > 1 and not words[1].startswith("-"):
            self.others.append((words[1], f"line {number}"))
        elif len(words) > 1 and not words[0].startswith("["):
            self._launch(number, words)
        elif words and program.endswith((".sh", ".bash", ".slurm", ".sbatch")):
            self.others.append((words[0], f"line {number}"))

    def _job(self, number: int, words: list[str]) -> None:
        """Read a Slurm job: the command is in ``--wrap``, in COMMAND, or in a script of its own."""
        before = self.slurm
        given, rest = options(words)
        self.slurm = {**before, **given}
        command = self.slurm.pop("wrap", None)
        if command is not None:
            self._inside(number, command, "--wrap")
        elif "COMMAND" in self.names.texts or "COMMAND" in self.names.unsure:
            self._inside(number, self.names.lookup("COMMAND", None), "COMMAND")
        elif rest and rest[0].rpartition("/")[2] == "ray.sub":
            raise RecipeError(
                f"{self.name}, line {number}: ray.sub runs what the variable COMMAND holds; nothing sets it here. Put "
                'COMMAND="..." before sbatch, or import the command itself'
            )
        elif rest:
            self.others.append((rest[0], f"line {number}"))
        self.slurm = before

    def _inside(self, number: int, text: str, where: str) -> None:
        """Read the command that a text holds."""
        if UNKNOWN in text:
            why = "; ".join(dict.fromkeys(self.names.reasons)) or "it is known only when it runs"
            raise RecipeError(
                f"{self.name}, line {number}: {where} holds the command and is not constant ({why[:200]}); write its "
                "values out, or import the command as a file of its own"
            )
        if self.nested >= _NESTED:
            raise RecipeError(f"{self.name}, line {number}: more than {_NESTED} commands stand within each other")
        self.nested += 1
        self._commands(number, Reader(text, self.names).words())
        self.nested -= 1

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
        launch = _Launch(SourceFile(self.name, "a launch script", devices=self.devices), f"line {number}")
        for option, text in self.slurm.items():
            if UNKNOWN in text:
                self._unresolved(launch, KEY + option, text)
            else:
                launch.source.add(KEY + option, text or True, launch.place)
        n = 0
        while n < len(words):
            word = words[n]
            n += 1
            if word.startswith("--") and len(word) > 2:
                flag, equals, text = word[2:].partition("=")
                values = [text] if equals else []
                while not equals and n < len(words) and not _ends_values(words[n]):
                    values.append(words[n])
                    n += 1
                self._flag(launch, flag, values)
            elif match := _SETTING.fullmatch(word):
                self._take(launch, match[1].replace("/", "."), match[2])
            else:
                launch.source.words |= set(re.split(r"[^\w-]+", word)) | {word}
                if word in _PROGRAMS or word.endswith(".py") or words[n - 2] == "-m":
                    launch.begin()
                elif word.endswith(ENDINGS) and launch.program:
                    launch.configurations.append((word, False))
        self._bases(launch)
        if launch.source.settings or launch.source.unresolved or launch.source.lacks:
            self.launches.append(launch.source)
        if len(self.launches) > _MOST_LAUNCHES:
            raise RecipeError(f"{self.name}: more than {_MOST_LAUNCHES:,} commands with settings")

    def _flag(self, launch: _Launch, flag: str, values: list[str]) -> None:
        if flag in _DEVICES and values and values[0].isdigit():
            launch.source.devices = int(values[0])
            return
        plain = flag.replace("-", "_")
        if plain in ("config_path", "config_dir", "config_name") and values:
            if plain == "config_path" and values[0].endswith(ENDINGS):
                launch.configurations.append((values[0], True))
            else:
                launch.hydra[plain] = values[0]
            values = values[1:]
            if not values:
                return
        if flag in _CONFIGS and values:
            launch.configurations.append((values[0], True))
            values = values[1:]
            if not values:
                return
        # `torchrun --standalone train.py`: the script is no value of the flag
        launch.source.words |= {word for value in values for word in re.split(r"[^\w-]+", value)}
        if len(values) == 1 or not values:
            self._take(launch, plain, values[0] if values else "true")
        else:
            self._take_list(launch, plain, values)

    def _take_list(self, launch: _Launch, key: str, values: list[str]) -> None:
        if any(UNKNOWN in value for value in values):
            self._unresolved(launch, key, " ".join(values))
        else:
            launch.source.add(key, [from_text(value) for value in values], launch.place)

    def _take(self, launch: _Launch, key: str, text: str) -> None:
        if UNKNOWN in text:
            self._unresolved(launch, key, text)
        else:
            launch.source.add(key, from_text(text), launch.place)
        if len(launch.source.settings) + len(launch.source.unresolved) > MOST_SETTINGS:
            raise RecipeError(f"{self.name}: more than {MOST_SETTINGS:,} settings in one command")

    def _unresolved(self, launch: _Launch, key: str, text: str) -> None:
        why = "; ".join(dict.fromkeys(self.names.reasons)) or "known only when it runs"
        launch.source.unresolved.append((f"{key}={text.replace(UNKNOWN, '...')}", why[:300]))

    def _bases(self, launch: _Launch) -> None:
        """Lay the command's settings on those of the configurations that it names."""
        folder = launch.hydra.get("config_path", launch.hydra.get("config_dir", ""))
        if name := launch.hydra.get("config_name", ""):
            name = name if name.endswith(ENDINGS) else f"{name}.yaml"
            launch.configurations.append((f"{folder.rstrip('/')}/{name}" if folder else name, True))
        for path, by_flag in reversed(launch.configurations):  # a later one lies on an earlier one
            launch.source.lacks = self._base(launch, path) or launch.source.lacks
            if launch.source.lacks and by_flag:
                raise RecipeError(launch.source.lacks)

    def _base(self, launch: _Launch, path: str) -> str:
        """Lay the settings on those of one file, and return what is wrong if it cannot be read."""
        where = f"{self.name}, {launch.place}"
        whose = OWN_DEFAULTS.get(path.rpartition("/")[2].rpartition(".")[0])
        if UNKNOWN in path and not whose:
            why = "; ".join(dict.fromkeys(self.names.reasons)) or "known only when it runs"
            shown = path.replace(UNKNOWN, "...")[:300]
            unknown = f"{where}: the command's configuration {shown} is not known ({why[:200]})"
            name = path.rpartition("/")[2]
            if UNKNOWN in name:
                return f"{unknown}; write its name out"
            if not self.files.is_there(name):
                return f"{unknown}; copy {name} beside the script, or write its folder out"
            launch.source.cautions.append(f"{name} beside the script is read for {shown}, whose folder is not known")
            path = name
        file, why = self.files.find(path, (self.files.folder, Path.cwd()))
        if file is not None:
            below = read_yaml(self.files.text(file), path, file.parent, self.files)
            launch.source.settings = {**below.settings, **launch.source.settings}
            launch.source.unresolved += below.unresolved
            launch.source.cautions += below.cautions
        elif whose:
            shown = path.replace(UNKNOWN, "...")[:300]
            launch.source.unresolved.append((f"{shown}, {launch.place}", f"{why}; {whose}'s usual defaults are taken"))
        else:
            return (
                f"{where}: the command reads its settings from {path[:300]}, which {why.removeprefix('it ')}; a "
                "recipe without them would train something else. Put the file there, seen from this folder, or run the "
                f"command where it is. {nearest_recipe(path)}"
            )
        return ""

    def chosen(self) -> SourceFile:
        """Return the command with the most settings; the others are listed.

        Raises:
            RecipeError: it lacks its configuration, or no command has settings and one runs another script.
        """
        if not self.launches and self.others:
            path, place = self.others[-1]
            shown = path.replace(UNKNOWN, "...")[:300]
            where = f"{self.name}, {place}: the command runs the script {shown}"
            if self.files.is_there(path):
                raise RecipeError(f"{where}, which holds the settings: dapo import {shown}")
            raise RecipeError(f"{where}, which is not there; import that script itself. {nearest_recipe(path)}")
        if not self.launches:
            return SourceFile(self.name, "a launch script")
        best = max(self.launches, key=lambda launch: len(launch.settings))
        if best.lacks:
            raise RecipeError(best.lacks)
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
