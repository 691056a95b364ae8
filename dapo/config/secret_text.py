"""Find and hide secrets in texts: by the name in front of a value, and by the exact form of a token.

A path is never a secret, whatever it is called.
"""

from __future__ import annotations

import re

HIDDEN = "<hidden-secret>"
"""Stands where a secret was."""

# ---------------------------------------------------------------------- names


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_NOUNS = _set(
    "auth authorization bearer cookie cred credential jwt pass passcode passphrase passwd password pwd secret"
)
"""Words that make a name one of a secret."""
_ENDS = ("password", "passwd", "passphrase")
_KEYS = ("token", "tokens", "key", "keys")
"""Words that the one before makes secret."""
_OWNERS = _set(
    "access account admin ai anthropic api auth aws azure bearer bot cerebras client cohere comet consumer "
    "dashscope deepseek deploy encryption fireworks gcp gemini git github gitlab google gpg grok groq hf hub hugging "
    "huggingface jina kaggle langsmith license llm master mistral mlflow neptune ngc nvidia oauth openai openrouter "
    "perplexity pinecone private ray refresh replicate sas secret serper serpapi service session shared signing "
    "ssh storage stripe subscription swanlab tavily together voyage wandb xai"
)
"""Words before ``key``, ``keys`` and ``tokens`` that make them secret."""
_LOOKUPS = _set(
    "answer cache column config data dict env field foreign group hash image index input json label map metric output "
    "partition primary prompt public query response reward sample sort state target text"
)
"""Words before ``key`` that make it the name of something."""
_VOCABULARY = _set(
    "answer assistant audio begin blank bos cls close decoder draft dummy encoder end eod eoi eom eos eot fim first "
    "image img input last mask max middle min new newline next num open output pad per placeholder prefix prompt "
    "reasoning response role sep separator special start stop suffix target think thinking tool unk user video vision "
    "word"
)
"""Words before ``token`` that make it one of a vocabulary, and none of a service."""
_GLUED = re.compile(rf"({'|'.join(_OWNERS)})({'|'.join([*_NOUNS, *_KEYS])}|secrets)")
_SUFFIXES = _set(
    "admin backup base ci default dev hex live main new old plain prod production raw read readonly ro rw staging str "
    "string test testing text v value write"
)
"""Words after a secret's name that change nothing."""
_NO_SECRET = re.compile(
    r"(?:~|\.{1,2}|[A-Za-z]:|/[a-z][\w.-]*)[/\\].*"  # a path
    r"|<\|[^<>\s]{1,60}\|>|</?[a-z_]{1,40}>"  # a token of a vocabulary
    r"|\d{0,3}|true|false|yes|no|on|off|none|null|auto|basic|bearer|digest",
    re.IGNORECASE | re.DOTALL,
)
"""Values under a secret's name that are none."""


def is_secret_name(name: str) -> bool:
    """Return whether a name says that its value is secret: ``hf_token``, ``apiKey``, ``WANDB_KEY``, ``MY_TOKEN_1``."""
    words = [word.lower() for word in _WORD.findall(name)]
    while words and (words[-1].isdigit() or words[-1] in _SUFFIXES):
        words.pop()
    if not words:
        return False
    glued = _GLUED.fullmatch(words[-1])  # apikey
    *before, last = words if glued is None else [*words[:-1], glued[1], glued[2]]
    if last == "token":
        return not before or before[-1] not in _VOCABULARY
    owned = any(word in _OWNERS for word in before)
    if last == "tokens":
        return owned
    if last in ("key", "keys"):  # of a variable of the environment in any case
        return (owned or name.isupper()) and not (before and before[-1] in _LOOKUPS)
    if last == "pat":  # a personal access token
        return name.isupper()
    return last in _NOUNS or last.removesuffix("s") in _NOUNS or last.endswith(_ENDS)


def is_shown(value: str) -> bool:
    """Return whether a value under a secret's name is none: a path, a word such as ``true``, ``<|end|>``."""
    return _NO_SECRET.fullmatch(value) is not None


# ---------------------------------------------------------------------- tokens and addresses

_ADDRESS = re.compile(r"(?<=://)[^/?#\s@]+(?:@[^/?#\s@]+)*@")
_QUERY = re.compile(r"(?<=[?&])([\w.-]+)=([^&#\s\"'<>]+)")
"""A parameter of an address."""
_QUERY_NAME = re.compile(r"(^|[-_.])(key|sig|signature)$", re.IGNORECASE)
"""Of a parameter, beside the names of secrets."""
_TOKEN = re.compile(
    r"""(?<![\w/\\.])(?:
      (?:hf_|api_org_)[A-Za-z0-9]{34}                           # Hugging Face
    | sk-(?:[A-Za-z0-9]{32}|[A-Za-z0-9]{48})                    # OpenAI's older keys, and services like it
    | sk-(?:[a-z]+-)?[\w-]{20,}T3BlbkFJ[\w-]{20,}               # OpenAI
    | sk-ant-[a-z]+\d\d-[\w-]{93}AA                             # Anthropic
    | sk-or-v1-[0-9a-f]{64}                                     # OpenRouter
    | wandb_v1_\w{77}                                           # Weights & Biases
    | gsk_[A-Za-z0-9]{52}                                       # Groq
    | nvapi-[\w-]{64}                                           # NVIDIA
    | xai-[A-Za-z0-9]{80}
    | pplx-[A-Za-z0-9]{48}                                      # Perplexity
    | csk-[a-z0-9]{48}                                          # Cerebras
    | r8_[A-Za-z0-9]{37}                                        # Replicate
    | tgp_v1_[\w-]{43}                                          # Together
    | gh[pousr]_[A-Za-z0-9]{36} | github_pat_[A-Za-z0-9]{22}_[A-Za-z0-9]{59}
    | glpat-[\w-]{20}                                           # GitLab
    | npm_[A-Za-z0-9]{36} | pypi-AgE[\w-]{50,} | dckr_pat_[\w-]{27}
    | xox[abeprs]-(?:\d+-){1,3}[A-Za-z0-9]{24,64}               # Slack
    | (?:AKIA|ASIA)[0-9A-Z]{16}                                 # AWS
    | AIza[\w-]{35} | ya29\.[\w-]{60,}                          # Google
    )(?![\w/\\-]|\.\w)
    | (?<![A-Za-z0-9/\\.])eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]+(?![\w/\\])   # JSON web tokens
    | (?<=\bBearer[ ])[\w.~+/=-]{8,}                            # of a header
    | -----BEGIN[ ](?:[A-Z0-9]+[ ])*PRIVATE[ ]KEY(?:[ ]BLOCK)?-----(?s:.*?)
      (?:-----END[ ](?:[A-Z0-9]+[ ])*PRIVATE[ ]KEY(?:[ ]BLOCK)?-----|\Z)
    """,
    re.VERBOSE,
)


def redact_text(text: str) -> str:
    """Return a text without the credentials and keys of addresses, and without tokens."""
    return _TOKEN.sub(HIDDEN, redact_address(text))


def redact_address(address: str) -> str:
    """Return an address without its credentials and its parameters' secret values (``?api_key=...``)."""

    def shown(found: re.Match[str]) -> str:
        secret = is_secret_name(found[1]) or _QUERY_NAME.search(found[1])
        return f"{found[1]}={HIDDEN}" if secret else found[0]

    return _QUERY.sub(shown, _ADDRESS.sub(f"{HIDDEN}@", address))


# ---------------------------------------------------------------------- shell

_NAME = r"(?P<name>[A-Za-z_][\w.-]*)"
_PARENTHESES = r"\((?:[^()]|\([^()]*\))*\)"
_VALUE = (
    rf"""(?:'[^']*'?|"(?:\\.|\${_PARENTHESES}|[^"\\])*"?|\$'(?:\\.|[^'\\])*'?"""
    rf"""|\$?{_PARENTHESES}|\$\{{[^}}]*\}}|`[^`]*`|\\.|[^\s;&|<>()'"`\\])+"""
)
"""A word of a shell: quoted pieces, and all up to a blank or an operator."""
_TO_QUOTE = r"[^\"'\\\n]+"
_SEPARATOR = r"(?:=|[ \t]+|[\"']?[ \t]*,[ \t]*)"  # also between the words of a list
_BETWEEN, _BARE = r"[\"',\s]+", r"[^\"',\s]+"
_WITHIN = r"(?:(?!&&|[;\n]|\|)[^\n]){0,2000}?\s"  # of one command
_FORMS = [
    (re.compile(prefix), re.compile(value))
    for prefix, value in (
        (rf"(?<![\w.-]){_NAME}\+?=(?!=)", _VALUE),
        (rf"\$\{{{_NAME}:?[-=]", r"[^}]+"),  # ${NAME:-VALUE}
        (rf"(?<![\w-])--?{_NAME}{_SEPARATOR}(?!-)", _VALUE),
        (rf"\b(?:setenv|set)\s+(?:-\w+\s+)*{_NAME}\s+", _VALUE),
        (r"[\"'](?P<name>[\w.-]+)\\?[\"']?\]?\s*[:=]\s*\\?[\"']?", _TO_QUOTE),  # a header, JSON
        (r"\bmachine\s+\S+\s+login\s+\S+\s+(?P<name>password)\s+", _VALUE),
        (
            rf"\b(?:curl|https?)\s(?:{_WITHIN})?(?:-[A-Za-z]*[uUa]|--(?:proxy-)?user)[ =]?\s*(?=\S*:|[\"'][^\"'\n]*:)",
            _VALUE,
        ),
        (rf"\bcurl\s(?:{_WITHIN})?-b\s*(?=[\"']?\w+=)", _VALUE),
        (rf"\b(?:sshpass|login)\s(?:{_WITHIN})?-p\s*", _VALUE),
        (
            rf"\b(?:wandb{_BETWEEN}login|authtoken)(?:{_BETWEEN}(?:-{_BARE}|(?!-){_BARE}://{_BARE}))*{_SEPARATOR}(?![-#])",
            _VALUE,
        ),
    )
]
"""What stands right before a secret in a line of shell, and the secret. A ``name`` has to be a secret's."""
_REFERENCE = re.compile(
    rf'"?(?:Bearer\s|Basic\s|\$\w*|\$\{{\w+(?::?\?[^}}]*|:?[-+=](?:\$\w+)?)?\}}|\${_PARENTHESES}|`[^`]*`|:)+"?',
)
"""A value that another variable, a file or a command gives."""
_COLON = (re.compile(rf"(?<![\w.-]){_NAME}[\"']?\s*:\s+"), re.compile(_VALUE))
_COMMENT = re.compile(r"(?:^|(?<=\s))#[^\n]*")


def redact_shell(text: str) -> str:
    """Return lines of shell, or a command, without secrets: in variables, options, headers and logins."""
    for prefix, value in _FORMS:
        text = _without(text, prefix, value)
    return redact_text(text)


def redact_comments(text: str) -> str:
    """Return YAML between two values with no secret in its comments, such as a line that was commented out."""
    return _COMMENT.sub(lambda comment: redact_shell(_without(comment[0], *_COLON)), redact_text(text))


def _without(text: str, prefix: re.Pattern[str], value: re.Pattern[str]) -> str:
    parts, end = [], 0
    for found in prefix.finditer(text):
        if found.start() < end or not is_secret_name(found.groupdict().get("name") or "secret"):
            continue
        secret = value.match(text, found.end())
        if secret is None or _REFERENCE.fullmatch(secret[0]) or is_shown(secret[0].strip("\"'")):
            continue
        parts += [text[end : found.end()], HIDDEN]
        end = secret.end()
    return "".join([*parts, text[end:]])


def redact_words(words: list[str]) -> list[str]:
    """Return the words of a command, each of which follows an option with a secret's name hidden."""
    options = [False, *(word.startswith("-") and is_secret_name(word.lstrip("-")) for word in words)]
    return [
        HIDDEN if after and not word.startswith("-") and not is_shown(word) else word
        for word, after in zip(words, options, strict=False)
    ]
