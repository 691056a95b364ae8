"""Launch scripts: the settings that a bash script gives to a trainer, as ``key=value`` or ``--flag value``.

Read as text. Variables and arrays that are set to constants are put in; what a command, an argument or the environment
would decide is listed instead, and nothing is run. A command in a constant text (``COMMAND``, ``--wrap``, ``bash -c``)
is read as one.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field
from pathlib import Path

from dapo.errors import RecipeError
from dapo.importing.arithmetic import from_text, shown
from dapo.importing.contents import MOST_SETTINGS, Processes, SourceFile
from dapo.importing.named_files import ENDINGS, OWN_DEFAULTS, SourceFiles, nearest_recipe
from dapo.importing.shell_words import LONGEST, SEPARATORS, UNKNOWN, UNSET, Names, Reader
from dapo.importing.slurm import KEY, options
from dapo.importing.yaml_source import read_yaml

_ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_ARRAY = re.compile(r"(\w+)(\+?)=\(")
_SETTING = re.compile(r"[+~]{0,2}([A-Za-z_][\w/@-]*(?:\.[\w@-]+)*)=(.*)", re.DOTALL)
_SENTENCE = re.compile(r"\s*(?:- )?[A-Z][\w,-]*(?: [^\s=]+){8,}$")
_A_PAGE = 3  # sentences; a script has one or two, in a quotation
APART = "copy a page's YAML block, command or Python into a file of its own (.yaml, .sh, .py), and import that"
_OPENING = {"if", "for", "while", "until", "case", "select"}
_WORDS = {"then", "do", "{", "}", "!", "time", "nohup", "exec", "function"}
_TESTS = ("[", "[[", "test", "grep", "command")
_LAUNCHERS = {"python", "python3", "torchrun", "uv", "accelerate", "deepspeed"}
_PROGRAMS = {"swift", "trl", "megatron"}
_CONFIGS = {"config", "config_file"}
_HYDRA = {"config_path", "config_dir", "config_name"}
_SHELLS = {"bash", "sh", "zsh", "source", "."}
_SCRIPTS = (".sh", ".bash", ".slurm", ".sbatch")
_NESTED = 3  # commands that stand within each other's texts, or scripts that run each other
_MOST_LAUNCHES = 1_000


@dataclass(slots=True)
class _Launch:
    """One command with settings."""

    source: SourceFile
    place: str  # "line 3"
    configurations: list[tuple[str, bool]] = field(default_factory=list)  # files that it names; by a flag
    hydra: dict[str, str] = field(default_factory=dict)  # config_path, config_name
    program: bool = False  # what follows is for the trainer, and not for what starts it

    def begin(self) -> None:
        """Drop what was for whatever starts the program."""
        self.source.settings = {key: given for key, given in self.source.settings.items() if key.startswith(KEY)}
        self.source.unresolved, self.source.unread, self.configurations, self.hydra = [], {}, [], {}


def read_script(text: str, name: str, files: SourceFiles) -> SourceFile:
    """Read a source from a launch script.

    Args:
        text: the script.
        name: for messages.
        files: what reads the configuration that a command names.

    Raises:
        RecipeError: its configuration is not there, its command is not constant, or it has no end.
    """
    script = _Script(name, files)
    script.read(text)
    source = script.chosen()
    if len(prose := [line for line in text.splitlines() if _SENTENCE.match(line)]) >= _A_PAGE:
        source.cautions.append(f"{name} is a page: one command of it was read, and no block between its sentences")
        source.unresolved.append(
            (f"{len(prose)} lines of prose, the first {prose[0][:60]!r}", f"{name} is a page: {APART}")
        )
    return source


@dataclass(slots=True)
class _Block:
    """An ``if``, a ``case`` or a loop, while it is read."""

    before: Names
    kind: str
    ways: list[Names] = field(default_factory=list)  # variables at the end of each branch so far
    every: bool = False  # there is an else, or a pattern `*`: no way leads past it
    at_pattern: bool = False  # the words up to the next `)` are a pattern of a case
    never: bool = False  # a loop over arguments, where the script has none


class _Script:
    def __init__(self, name: str, files: SourceFiles) -> None:
        self.name, self.files = name, files
        self.names, self.nested = Names(), 0
        self.blocks: list[_Block] = []
        self.launches: list[SourceFile] = []
        self.opened = 0
        self.others: list[tuple[str, str, str]] = []  # scripts that a command runs, where it stands, why it is not read
        self.slurm: dict[str, str] = {}  # options of sbatch, of the lines #SBATCH or of the command at hand
        self.processes = Processes()

    def read(self, text: str, within: int = 0) -> None:
        """Read the commands of a text one after the other; each sees the variables that those before it set.

        Args:
            text: a script, or a command that another command holds.
            within: the line of that other command; 0: there is none.
        """
        if not within and ("\0" in text or "\1" in text):
            raise RecipeError(f"{self.name} holds a NUL character or its like, which no script does")
        for directive in [] if within else re.findall(r"(?m)^#SBATCH[ \t]+(.*)$", text)[:MOST_SETTINGS]:
            self.slurm |= options(Reader(directive, self.names).words())[0]
        reader = Reader(text.replace("\r\n", "\n"), self.names)
        command, between, number = list[str](), "", 1  # separators since the command before
        tested = perhaps = False
        for word in itertools.chain(reader.each(), "\n"):
            if word not in SEPARATORS:
                number = number if command else within or reader.line
                command.append(word)
            elif self.blocks and self.blocks[-1].at_pattern:
                if word == ")":
                    self.blocks[-1].every |= "*" in command
                    self.blocks[-1].at_pattern, command = False, []
                elif command == ["esac"]:
                    self._close()
                    command = []
            else:
                between += word
                if between.endswith(";;") and not command and self.blocks and self.blocks[-1].kind == "case":
                    self._next_way()
                    self.blocks[-1].at_pattern = True
                if command:
                    before = between[:-1]
                    perhaps = before.endswith("||") or (before.endswith("&&") and (tested or perhaps))
                    tested = command[0] in _TESTS
                    between = word
                    self._perhaps(number, command, word) if perhaps else self._command(number, command, word)
                    command = []
                    self.names.begin()

    def _perhaps(self, number: int, words: list[str], ending: str) -> None:
        """Read a command that only runs if the one before it succeeds, or fails."""
        before = self.names.copy()
        self._command(number, words, ending)
        self.names.take_shared([before, self.names.copy()])

    def _set_array(self, plain: str, more: str, words: list[str]) -> None:
        if not more:
            self.names.arrays[plain], self.names.branched[plain] = [], []
            self.names.unsure.pop(plain, None)
        array = self.names.arrays.setdefault(plain, [])
        array += words
        self.names.branched.setdefault(plain, []).extend(self.names.added)
        self.names.added = []
        if len(array) > 2 * MOST_SETTINGS:
            raise RecipeError(f"{self.name}: the array {plain} grows beyond {2 * MOST_SETTINGS:,} words")

    def _open(self, words: list[str], ending: str) -> None:
        self.opened += 1
        if self.opened > MOST_SETTINGS:
            raise RecipeError(f"{self.name} has more than {MOST_SETTINGS:,} branches and loops")
        never = words[0] in ("while", "until") and re.search(r"\b0 (-gt|-ne|>|!=) 0\b", " ".join(words)) is not None
        self.blocks.append(_Block(self.names.copy(), words[0], never=never))
        if words[0] == "case":
            self.blocks[-1].at_pattern, self.blocks[-1].every = ending != ")", "*" in words
        if words[0] in ("for", "select") and len(words) > 1:
            self.names.unsure[words[1]] = "a loop sets it"

    def _next_way(self) -> None:
        if self.blocks:
            self.blocks[-1].ways.append(self.names.copy())
            self.names.become(self.blocks[-1].before.copy())

    def _close(self) -> None:
        if not self.blocks:
            return
        block = self.blocks.pop()
        ways = block.ways if block.at_pattern else [*block.ways, self.names.copy()]
        if block.never:
            self.names.become(block.before)
        else:
            self.names.take_shared(ways if block.every and ways else [*ways, block.before])

    def _command(self, number: int, words: list[str], ending: str) -> None:
        while words and (words[0] in _OPENING or words[0] in _WORDS or words[0] in ("elif", "else")):
            if words[0] in _OPENING:
                self._open(words, ending)
            elif words[0] in ("elif", "else"):
                self._next_way()
                if words[0] == "else" and self.blocks:
                    self.blocks[-1].every = True
            if words[0] in ("for", "case", "select"):
                return
            words = words[1:]
        if words and words[0] in ("fi", "done", "esac"):
            self._close()
            return
        exports = words[:1] == ["export"]
        while words and words[0] in ("export", "declare", "local", "readonly", "env", "set", "-x", "-a"):
            words = words[1:]
        if words and (array := _ARRAY.fullmatch(words[0])):
            self._set_array(array[1], array[2], words[1:])
            return
        while words and (match := _ASSIGNED.fullmatch(words[0])):
            self._assign(match[1], match[2], match[3])
            words = words[1:]
            if exports or words:  # `LR=1e-6 bash train.sh` sets it for that script, too
                self.names.exported.add(match[1])
        if exports:
            self.names.exported |= set(words)
            return
        program = words[0].rpartition("/")[2] if words else ""
        options_of_shells = (n for n, word in enumerate(words) if word in ("-c", "-lc"))
        text = next((n for n in options_of_shells if words[n - 1].rpartition("/")[2] in _SHELLS), 0)
        if program == "sbatch":
            self._job(number, words[1:])
        elif text and text + 1 < len(words):
            self._inside(number, words[text + 1], f"{words[text - 1]} -c")
        elif program in _SHELLS and len(words) > 1 and not words[1].startswith("-"):
            self._call(number, words[1], words[2:], own=program in ("source", "."))
        elif program.endswith(_SCRIPTS):
            self._call(number, words[0], words[1:])
        elif len(words) > 1 and program not in _TESTS:
            self._launch(number, words)

    def _call(self, number: int, path: str, arguments: list[str], *, own: bool = False) -> None:
        """Read the script that a command runs with its arguments; ``own``: its variables are this script's."""
        name = path.rpartition("/")[2] if UNKNOWN in path else path.replace(UNSET, "")
        file, why = self.files.find(name, (self.files.folder, Path.cwd()), _SCRIPTS)
        if file is None or self.nested >= _NESTED or UNKNOWN in name:
            self.others.append((path, f"line {number}", why))
            return
        names, blocks, launches = self.names, self.blocks, self.launches
        exported = {key: text for key, text in names.texts.items() if own or key in names.exported}
        unsure = {key: why for key, why in names.unsure.items() if own or key in names.exported}
        self.names = names if own else Names(texts=exported, unsure=unsure, arguments=arguments)
        self.blocks, self.launches, self.nested = [], [], self.nested + 1
        self.read(self.files.text(file))
        self.names, self.blocks, self.launches = names, blocks, [*launches, *self.launches]
        self.nested -= 1

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
            self._call(number, rest[0], rest[1:])
        self.slurm = before

    def _inside(self, number: int, text: str, where: str) -> None:
        """Read the command that a text holds."""
        if UNKNOWN in text:
            raise RecipeError(
                f"{self.name}, line {number}: {where} holds the command and is not constant ({self.names.why}); write "
                "its values out, or import the command as a file of its own"
            )
        if self.nested >= _NESTED:
            raise RecipeError(f"{self.name}, line {number}: more than {_NESTED} commands stand within each other")
        self.nested += 1
        self.read(text, number)
        self.nested -= 1

    def _assign(self, name: str, more: str, text: str) -> None:
        before = self.names.texts.get(name, "")
        self.processes.note(name, text)
        if UNKNOWN in text:
            self.names.unsure[name] = "; ".join(self.names.reasons[-1:]) or "it is not constant"
            return
        if not more:
            self.names.unsure.pop(name, None)
            self.names.branched[name] = []
        self.names.branched.setdefault(name, []).extend(self.names.added)
        self.names.added = []
        self.names.texts[name] = before + text if more else text
        if len(self.names.texts[name]) > LONGEST:
            raise RecipeError(f"{self.name}: the variable {name} grows beyond {LONGEST:,} characters")

    def _launch(self, number: int, words: list[str]) -> None:
        launch = _Launch(
            SourceFile(self.name, "a launch script", processes=Processes({**self.processes.given})), f"line {number}"
        )
        for option, text in self.slurm.items():
            self._take(launch, KEY + option, text or "true")
        added = self.names.added
        starts = [n for n, word in enumerate(added) if word.rpartition("/")[2] in _LAUNCHERS]
        added = added[starts[-1] + 1 :] if starts else added
        self._read_words(launch, words)
        if added:
            perhaps = _Launch(SourceFile(self.name, "a launch script"), launch.place, program=True)
            self._read_words(perhaps, added)
            for key, given in perhaps.source.settings.items():
                if key not in launch.source.settings or launch.source.settings[key].value != given.value:
                    what = f"{key}={shown(given.value)}"
                    launch.source.not_read(key, what, "only some branches of the script set it")
        self._bases(launch)
        if launch.source.settings or launch.source.unresolved or launch.source.lacks:
            self.launches.append(launch.source)
        if len(self.launches) > _MOST_LAUNCHES:
            raise RecipeError(f"{self.name}: more than {_MOST_LAUNCHES:,} commands with settings")

    def _read_words(self, launch: _Launch, words: list[str]) -> None:
        n = 0
        while n < len(words):
            word = words[n]
            n += 1
            if word.startswith("--") and len(word) > 2:
                flag, equals, text = word[2:].partition("=")
                values = [text] if equals else []
                while not equals and n < len(words) and not _ends_values(words[n], launch.program):
                    values.append(words[n])
                    n += 1
                self._flag(launch, flag, values)
            elif match := _SETTING.fullmatch(word):
                self._take(launch, match[1].replace("/", "."), match[2])
            elif re.match(r"\d?[<>]", word):  # output that goes to a file
                n += re.fullmatch(r"\d?[<>]{1,2}", word) is not None
            elif UNKNOWN in word and launch.program and not word.startswith("-"):
                launch.source.gaps.append((word.replace(UNKNOWN, "..."), f"{launch.place}: {self.names.why}"))
            elif word.strip(UNSET):
                self._plain_word(launch, word, words[n - 2] if n > 1 else "")

    def _plain_word(self, launch: _Launch, word: str, before: str) -> None:
        launch.source.words |= set(re.split(r"[^\w-]+", word)) | {word}
        name = word.rpartition("/")[2]
        if name in _LAUNCHERS:
            launch.begin()
            launch.program = False
        elif name in _PROGRAMS or word.endswith(".py") or before == "-m":
            launch.begin()
            launch.program = not word.startswith(("torch.", "accelerate."))
        elif word.endswith(ENDINGS) and launch.program:
            launch.configurations.append((word, False))

    def _flag(self, launch: _Launch, flag: str, values: list[str]) -> None:
        if values and launch.source.processes.note(flag, values[0]):
            return
        plain = flag.replace("-", "_")
        if values and plain in (*_HYDRA, *_CONFIGS):
            if plain in _CONFIGS or (plain == "config_path" and values[0].endswith(ENDINGS)):
                launch.configurations.append((values[0], True))
            else:
                launch.hydra[plain] = values[0]
            values = values[1:]
            if not values:
                return
        # `torchrun --standalone train.py`: the script is no value of the flag
        launch.source.words |= {word for value in values for word in re.split(r"[^\w-]+", value)}
        self._take(launch, plain, *(values or ["true"]))

    def _take(self, launch: _Launch, key: str, *words: str) -> None:
        text = " ".join(words)
        if UNKNOWN in text:
            launch.source.not_read(key, f"{key}={text.replace(UNKNOWN, '...')}", self.names.why)
        elif text == UNSET:
            launch.source.not_read(key, key, "empty unless a variable is set outside of the script")
        else:
            values = [from_text(word.replace(UNSET, "")) for word in words]
            launch.source.add(key, values if len(values) > 1 else values[0], launch.place)
        if len(launch.source.settings) + len(launch.source.unresolved) > MOST_SETTINGS:
            raise RecipeError(f"{self.name}: more than {MOST_SETTINGS:,} settings in one command")

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
        source, known = launch.source, path.replace(UNKNOWN, "...")[:300]
        whose = OWN_DEFAULTS.get(path.rpartition("/")[2].rpartition(".")[0])
        unknown = UNKNOWN in path and not whose
        path = path.rpartition("/")[2] if unknown else path
        file, why = self.files.find(path, (self.files.folder, Path.cwd()))
        if unknown and file is None:
            what = (
                "write its name out" if UNKNOWN in path else f"copy {path} next to the script, or write its folder out"
            )
            where = f"{self.name}, {launch.place}: the command's configuration {known} is not known ({self.names.why})"
            return f"{where}; {what}"
        if unknown:
            source.cautions.append(f"{path} next to the script is read for {known}, whose folder is not known")
        if file is not None:
            below = read_yaml(self.files.text(file), path, file.parent, self.files)
            source.settings = {
                **{key: given for key, given in below.settings.items() if key not in source.unread},
                **source.settings,
            }
            source.unread |= {key: why for key, why in below.unread.items() if key not in source.settings}
            source.unresolved += below.unresolved
            source.cautions += below.cautions
        elif whose:
            source.unresolved.append((f"{known}, {launch.place}", f"{why}; {whose}'s usual defaults are taken"))
        else:
            return self._absent(launch.place, f"reads its settings from {known}", why, path)
        return ""

    def _absent(self, place: str, what: str, why: str, path: str) -> str:
        return (
            f"{self.name}, {place}: the command {what}, which {why.removeprefix('it ')}; a recipe without it would "
            "train something else. Put it there, seen from this folder, or run the command where it is. "
            f"{nearest_recipe(path)}"
        )

    def chosen(self) -> SourceFile:
        """Return the command with the most settings; the others are listed.

        Raises:
            RecipeError: it lacks its configuration, or no command has settings and one runs another script.
        """
        if not self.launches and self.others:
            path, place, why = self.others[-1]
            raise RecipeError(self._absent(place, f"runs the script {path.replace(UNKNOWN, '...')[:300]}", why, path))
        if not self.launches:
            return SourceFile(self.name, "a launch script")
        best = max(self.launches, key=lambda launch: len(launch.settings))
        if best.lacks:
            raise RecipeError(best.lacks)
        if best.processes.devices is None:
            best.processes = self.processes
        for other in self.launches:
            if other is not best and any("." in key for key in other.settings):
                best.unresolved.append(
                    (f"a command with {len(other.settings)} further settings", "another command of the script")
                )
        return best


def _ends_values(word: str, program: bool) -> bool:
    """Whether a word is no value of the flag before it. A number may have a minus.

    Args:
        word: the word.
        program: the trainer's program is named already, so a file of Python is a value, too.
    """
    match = _SETTING.fullmatch(word)
    setting = match is not None and "." in match[1]
    script = word.endswith(".py") and not program
    return setting or script or re.match(r"--?[A-Za-z]|--$|\d?>", word) is not None
