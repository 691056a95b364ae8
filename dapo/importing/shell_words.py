"""Words of a shell script: quotes, variables and arrays that are constant, nothing that has to be run.

A word that needs a command, an argument or a variable of the environment keeps that part as ``Unknown``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from dapo.errors import RecipeError
from dapo.importing.arithmetic import NotConstant, calculate

LONGEST = 100_000  # characters of an expanded word: variables may hold each other many times over
_DEEPEST = 20  # defaults within defaults
_MOST_WORDS = 20_000  # of one line, with its variables put in
_MOST_REASONS = 20  # of one line
UNKNOWN = "\0"  # stands in a word for what is known only when the script runs; a file holds none (they are refused)
UNSET = "\1"  # stands in a word for a variable that is empty unless somebody sets it outside, as ``${X:-}``
_ASSIGNMENT = re.compile(r"\w+=")
_PARAMETER = re.compile(r"\$(\w+|[@*#?$!-])")
# The end of a line that goes on, with comments behind it, and empty lines before a setting: as people leave them
_CONTINUED = re.compile(r"\\[ \t]*\n(?:(?:[ \t]*(?:#.*)?\n)*(?=[ \t]*(?:--\w|[+~]*\w+(?:\.\w+)+=))|(?:[ \t]*#.*\n)*)")
_SKIPPED = re.compile(rf"[^\S\n]+|#.*|{_CONTINUED.pattern}|<<-?[ \t]*['\"]?(?P<document>[A-Za-z_]\w*)['\"]?")
_BRACKETS = re.compile(r"\\.|(?<!\w)'[^']*'|\"(?:\\.|[^\"\\])*\"|[(){}]", re.DOTALL)  # and what is quoted
SEPARATORS = ("\n", ";", "&", "|", "(", ")")


@dataclass(slots=True)
class Names:
    """Variables of a script so far."""

    texts: dict[str, str] = field(default_factory=dict)
    arrays: dict[str, list[str]] = field(default_factory=dict)
    branched: dict[str, list[str]] = field(default_factory=dict)  # words that only some branches add to a variable
    unsure: dict[str, str] = field(default_factory=dict)  # name -> why its value is not constant
    exported: set[str] = field(default_factory=set)
    arguments: list[str] = field(default_factory=list)  # of the script
    reasons: list[str] = field(default_factory=list)  # why the parts of the present command are unknown
    added: list[str] = field(default_factory=list)  # words that only some branches add to the present command

    def lookup(self, name: str, default: str | None) -> str:
        """Return the text of a variable, or ``UNKNOWN``."""
        if name in self.unsure:
            return self.unknown(f"${name}: {self.unsure[name]}")
        self.added += self.branched.get(name, [])
        if name in self.texts and (default is None or self.texts[name] not in ("", UNSET)):
            return self.texts[name]
        if name in ("HOME", "PWD"):
            return {"HOME": "~", "PWD": "."}[name]
        if default is not None:
            return default
        return self.unknown(f"${name} is set outside of the script")

    @property
    def why(self) -> str:
        """Why the command at hand is not constant."""
        return "; ".join(dict.fromkeys(self.reasons))[:300] or "known only when it runs"

    def unknown(self, why: str) -> str:
        """Return ``UNKNOWN`` and keep the reason."""
        if len(self.reasons) < _MOST_REASONS:
            self.reasons.append(why)
        return UNKNOWN

    def begin(self) -> None:
        """Forget what was said of the command before."""
        self.reasons, self.added = [], []

    def copy(self) -> Names:
        """Return the variables as they are now, for a branch."""
        arrays = {name: list(words) for name, words in self.arrays.items()}
        branched = {name: list(words) for name, words in self.branched.items()}
        return replace(self, texts=dict(self.texts), arrays=arrays, branched=branched, unsure=dict(self.unsure))

    def become(self, other: Names) -> None:
        """Take the variables of another way through the script."""
        self.texts, self.arrays, self.branched, self.unsure = other.texts, other.arrays, other.branched, other.unsure

    def take_shared(self, ways: list[Names]) -> None:
        """Keep what all ways through a branch share. Words that only some add are ``branched``, the rest is unsure."""
        self.unsure = {name: why for way in ways for name, why in way.unsure.items()}
        self.branched = {}
        for name in {name for way in ways for name in (*way.arrays, *way.branched)}:
            shared, more = _shared([way.arrays.get(name, []) for way in ways])
            more += [word for way in ways for word in way.branched.get(name, [])]
            if any(name in way.arrays for way in ways):
                self.arrays[name] = shared
            if more:
                self.branched[name] = more
        for name in {name for way in ways for name in way.texts}:
            texts = [way.texts.get(name) or "" for way in ways]
            words = [text.split() for text in texts]
            if all(text == texts[0] for text in texts):
                self.texts[name] = texts[0]
            elif all(not some or _begins_option(some[0]) for some in words):
                shared, more = _shared(words)
                self.texts[name] = " ".join(shared)
                self.branched[name] = self.branched.get(name, []) + more
            else:
                self.unsure[name] = "it is set inside of an if or a loop, and not by all branches alike"


def _shared(ways: list[list[str]]) -> tuple[list[str], list[str]]:
    """Return the words of the options that all ways have, and of those that only some have."""
    options = [_options(words) for words in ways]
    every = [option for option in options[0] if all(option in others for others in options)]
    more = dict.fromkeys(option for some in options for option in some if option not in every)
    return [word for option in every for word in option], [word for option in more for word in option]


def _options(words: list[str]) -> list[tuple[str, ...]]:
    """Return each setting, and each flag with its values."""
    options: list[tuple[str, ...]] = []
    for word in words:
        if not options or _begins_option(word):
            options.append((word,))
        else:
            options[-1] = (*options[-1], word)
    return options


def _begins_option(word: str) -> bool:
    return re.match(r"--?[A-Za-z]|[+~]*[\w./-]+=", word) is not None


class Reader:
    """Takes one text apart, a word at a time."""

    def __init__(self, text: str, names: Names, depth: int = 0) -> None:
        self.text, self.names, self.at, self.depth = text, names, 0, depth
        self._document = ""  # the word that ends the here-document which begins after this line
        self._line, self._counted = 1, 0

    @property
    def line(self) -> int:
        """The number of the line that is read."""
        self._line += self.text.count("\n", self._counted, self.at)
        self._counted = self.at
        return self._line

    def words(self) -> list[str]:
        """Words and separators (each of ``SEPARATORS`` as a word of its own) to the end of the text."""
        return list(self.each())

    def each(self) -> Iterator[str]:
        """Yield words and separators. A word sees the variables as they are when it is asked for."""
        count = 0
        while self.at < len(self.text):
            if self._skip():
                continue
            here = self.text[self.at]
            if here in SEPARATORS:
                self.at += 1
                count = 0 if here == "\n" else count
                found = [here]
                if here == "\n" and self._document:
                    end = re.compile(rf"^\s*{self._document}\s*$", re.MULTILINE).search(self.text, self.at)
                    self.at, self._document = end.end() if end else len(self.text), ""
            else:
                found = self._word()
            count += len(found)
            if count > _MOST_WORDS:
                raise RecipeError(f"a line of the script has more than {_MOST_WORDS:,} words")
            yield from found

    def _skip(self) -> bool:
        """Pass over what is no word, such as blanks, a comment, ``<<END``; return whether there was any."""
        found = _SKIPPED.match(self.text, self.at)
        if found is not None:
            self.at = found.end()
            self._document = found["document"] or self._document
        return found is not None

    def _word(self) -> list[str]:
        """One word, or several where an unquoted variable or an array (``NAME=(`` and its words) holds several."""
        fields, size = [""], 0
        while self.at < len(self.text):
            here, before = self.text[self.at], len(fields[-1])
            if here == "(" and re.fullmatch(r"\w+\+?=", fields[-1]):
                return [f"{fields[-1]}(", *self._array()]
            if here.isspace() or here in SEPARATORS or (here in "\\<" and _SKIPPED.match(self.text, self.at)):
                break
            if here == "'" and not self.text[self.at - 1 : self.at].isalnum():  # no apostrophe
                end = self.text.find("'", self.at + 1)
                self._ends(end >= 0, "a quotation", self.line)
                fields[-1] += self.text[self.at + 1 : end]
                self.at = end + 1
            elif here == '"':
                self.at += 1
                size += self._quoted(fields)
                continue
            elif here == "\\":
                fields[-1] += self.text[self.at + 1 : self.at + 2]
                self.at += 2
            elif here in "$`":
                size += self._extend(fields, self._expansion(), split=not _ASSIGNMENT.match(fields[0]))
                self._bounded(size)
                continue
            else:
                fields[-1] += here
                self.at += 1
            size += len(fields[-1]) - before
            self._bounded(size)
        return fields

    def _bounded(self, size: int) -> None:
        if size > LONGEST:
            raise RecipeError(f"the script makes a word of more than {LONGEST:,} characters")

    def _array(self) -> list[str]:
        self.at += 1
        words, line = list[str](), self.line
        while self.text[self.at : self.at + 1] != ")":
            self._ends(self.at < len(self.text), "an array", line)
            if self.text[self.at] in SEPARATORS:
                self.at += 1
            elif not self._skip():
                words += self._word()
            if len(words) > _MOST_WORDS:
                raise RecipeError(f"an array of the script has more than {_MOST_WORDS:,} words")
        self.at += 1
        return words

    @staticmethod
    def _ends(found: bool, what: str, line: int) -> None:
        if not found:
            raise RecipeError(f"line {line} opens {what} that does not end")

    def _quoted(self, fields: list[str]) -> int:
        """Read to the closing quotation mark; return the number of characters that this added."""
        size, line = 0, self.line
        while self.text[self.at : self.at + 1] != '"':
            self._ends(self.at < len(self.text), "a quotation", line)
            here = self.text[self.at]
            if continued := _CONTINUED.match(self.text, self.at):
                fields[-1] += " "
                self.at = continued.end()
            elif here == "\\" and self.text[self.at + 1 : self.at + 2] in ('"', "\\", "$", "`"):
                fields[-1] += self.text[self.at + 1]
                self.at += 2
            elif here in "$`":
                size += self._extend(fields, self._expansion(), split=False)
            else:
                fields[-1] += here
                self.at += 1
            size += 1
            self._bounded(size)
        self.at += 1
        return size

    def _extend(self, fields: list[str], found: str | list[str], *, split: bool) -> int:
        parts = found if isinstance(found, list) else (found.split() or [""]) if split and found != UNSET else [found]
        if parts:
            fields[-1] += parts[0]
            fields += parts[1:]
        return sum(map(len, parts)) + len(parts)

    def _matching(self, opening: str, closing: str, start: int) -> int:
        """Just behind the bracket that closes the one at ``start``."""
        depth = 0
        for found in _BRACKETS.finditer(self.text, start):
            depth += {opening: 1, closing: -1}.get(found[0], 0)
            if depth == 0:
                return found.end()
        self._ends(False, f"a bracket {opening}", self.line)
        return len(self.text)

    def _expansion(self) -> str | list[str]:
        text, at = self.text, self.at
        if text[at] == "`":
            closing = re.compile(r"`|$", re.MULTILINE).search(text, at + 1)
            self.at = closing.end() if closing else len(text)
            return self.names.unknown("`...` is a command")
        if text.startswith("$((", at):
            end = self._matching("(", ")", at + 1)
            inside, self.at = text[at + 3 : end - 2], end
            return self._arithmetic(inside)
        if text.startswith("$(", at):
            self.at = self._matching("(", ")", at + 1)
            return self.names.unknown("$(...) is a command, which is not run")
        if text.startswith("${", at):
            end = self._matching("{", "}", at + 1)
            inside, self.at = text[at + 2 : end - 1], end
            return self._braces(inside)
        if match := _PARAMETER.match(text, at):
            self.at = match.end()
            return self._plain(match[1])
        self.at += 1
        return "$"

    def _arithmetic(self, inside: str) -> str:
        plain = re.sub(r"\$\{?(\w+)\}?", r"\1", inside)
        names = self.names
        known = {n: names.texts[n] for n in re.findall(r"\w+", plain) if n in names.texts and n not in names.unsure}
        try:
            return str(calculate(plain, known, whole=True))
        except NotConstant:
            return self.names.unknown(f"$(({inside.strip()[:60]})) is not constant")

    def _plain(self, name: str) -> str | list[str]:
        if name in ("@", "*"):
            return list(self.names.arguments)  # nothing, unless another script calls this one
        if name == "#":
            return str(len(self.names.arguments))
        if name.isdecimal() and 0 < int(name) <= len(self.names.arguments):
            return self.names.arguments[int(name) - 1]
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            return self.names.unknown(f"${name} is an argument of the script")
        if name in self.names.arrays and name not in self.names.unsure:
            self.names.added += self.names.branched.get(name, [])
            return self.names.arrays[name][0] if self.names.arrays[name] else ""
        return self.names.lookup(name, None)

    def _braces(self, inside: str) -> str | list[str]:
        names = self.names
        if array := re.fullmatch(r"(\w+)\[[@*]\](?:[:+-].*)?", inside):
            if array[1] in names.unsure:
                return self.names.unknown(f"the array {array[1]}: {names.unsure[array[1]]}")
            names.added += names.branched.get(array[1], [])
            if array[1] in names.arrays or array[1] in names.branched or ":" in inside or "+" in inside:
                return list(names.arrays.get(array[1], []))
            return self.names.unknown(f"the array {array[1]} is set outside of the script")
        if re.fullmatch(r"[@*](:.*)?", inside):
            return list(names.arguments)
        match = re.fullmatch(r"([A-Za-z_]\w*|[1-9])(?:(:?[-=+])(.*))?", inside, re.DOTALL)
        if match is None:
            return self.names.unknown(f"${{{inside[:40]}}} is not a plain variable")
        name, how, other = match[1], match[2] or "", match[3] or ""
        if not how or (name.isdecimal() and int(name) <= len(names.arguments)):
            return self._plain(name)
        if name in names.unsure:
            return self.names.unknown(f"${name}: {names.unsure[name]}")
        if self.depth >= _DEEPEST or len(other) > LONGEST:
            raise RecipeError("the script's variables stand too deep within each other")
        has = name in names.texts and (names.texts[name] not in ("", UNSET) or ":" not in how)
        if "+" in how:
            return Reader(other, names, self.depth + 1).words() if has else []
        found = names.texts[name] if has else " ".join(Reader(other, names, self.depth + 1).words())
        names.added += names.branched.get(name, [])
        if how[-1] == "=" and UNKNOWN not in found:
            names.texts.setdefault(name, found)  # `: "${X:=8}"` sets it for what follows
        return found or UNSET
