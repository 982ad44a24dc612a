"""What may be kept of command lines, environments, messages and source lines: secrets are masked,
by their shape and by the name they stand under.

Imported into the user's program when something needs masking, so without torch or msgspec.
"""

import re
from collections.abc import Iterable, Mapping
from enum import IntEnum
from functools import lru_cache
from typing import Any, Final

MASK: Final = "***"
_KEPT: Final = ("CUDA_", "NCCL_", "OMP_", "MKL_", "TORCH", "PYTORCH_")


class Secrecy(IntEnum):
    """What a name says about its value."""

    NONE = 0
    PERHAPS = 1
    """A secret as an option or in quotes; often harmless in running text, as in `token: foo`."""
    SURE = 2


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SURE: Final = _words(
    "password passwords passwd pwd pswd pw passphrase passcode secret secrets credential"
    " credentials cred creds jwt authorization otp sessionid cookie"
)
_SURE_ENDING: Final = re.compile(
    r"(?:password|passwd|passphrase|secret|(?:api|access|secret|private|account|auth)_?keys?"
    r"|(?:auth|access|refresh|bearer|api|hf|hub)_?tokens?|access_key_id|shared_access_signature)$"
)
_HARMLESS_ENDING: Final = _words(
    "file path dir folder name type mode kind url uri host length len size min max count policy"
    " method provider env var expiry ttl timeout retries free less required dim"
)
_VOCABULARY: Final = _words(
    "pad eos bos unk mask sep cls special stop start end image per max num next first last new"
    " sub input output prompt class cross audio video text dummy drop"
)
"""A `…_token` of a vocabulary."""
_TABLE: Final = _words(
    "image label target feature sort text input output data dict group primary foreign column join"
    " index partition loss metric monitor mask query batch sample"
)
"""A `…_key` of a table or a dictionary."""
_PASS_OF: Final = _words("db user admin login smtp mysql redis ftp http proxy root mail ssh my key")
_NEGATED: Final = _words("no skip without disable")
_HARMLESS_VALUE: Final = re.compile(
    r"(?i)(?:true|false|yes|no|on|off|none|null|auto|basic|digest|kerberos|oauth2?|ldap|prompt|\*+)?$"
)


@lru_cache(maxsize=512)
def secrecy(name: str) -> Secrecy:
    """Whether a value under this name is a secret: of an option, a variable, a key of JSON."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.strip("-+\"' "))
    *before, last = re.split(r"[-_.\s]+", spaced.lower())
    joined, previous = "_".join([*before, last]), before[-1] if before else ""
    if last in _HARMLESS_ENDING or not _NEGATED.isdisjoint(before[:1]):
        return Secrecy.NONE
    if _SURE_ENDING.search(joined) or not _SURE.isdisjoint((*before, last)):
        return Secrecy.SURE
    if last == "token" and previous not in _VOCABULARY:
        return Secrecy.SURE if previous else Secrecy.PERHAPS
    if last == "pass" and (not previous or previous in _PASS_OF):
        return Secrecy.SURE if previous else Secrecy.PERHAPS
    if last in ("key", "auth") and previous not in _TABLE:
        return Secrecy.PERHAPS
    return Secrecy.NONE


_SHAPES: Final = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    r"|(?<![A-Za-z0-9])(?:"
    r"hf_[A-Za-z0-9]{16,}|api_org_[A-Za-z0-9]{16,}|sk-(?=[\w-]{0,40}\d)[\w-]{16,}"
    r"|[srp]k_(?:live|test)_\w{8,}|gh[oprsu]_\w{8,}|github_pat_\w{8,}"
    r"|gl(?:pat|dt|rt|cbt|ptt|ft|oas|agent)-[\w-]{16,}|xox[abeprs]-[\w-]{8,}|xapp-[\w-]{8,}"
    r"|A(?:KI|SI|GP|ID|RO)A[A-Z0-9]{12,}|AIza[\w-]{8,}"
    r"|ya29\.[\w-]{8,}|eyJ[\w-]{8,}(?:\.[\w-]+)*|npm_[A-Za-z0-9]{30,}|pypi-AgE[\w-]{8,}"
    r"|dckr_pat_[\w-]{8,}|SG\.[\w-]{8,}\.[\w-]{8,}|shp(?:at|ca|pa|ss)_\w{8,}|do[oprt]_v1_\w{8,}"
    r"|r8_[A-Za-z0-9]{20,}|nvapi-[\w-]{16,}|gsk_[A-Za-z0-9]{16,}|pplx-\w{16,}|xai-\w{16,}"
    r"|lsv2_\w{16,}|hv[bs]\.[\w-]{16,}|ATATT[\w-]{16,}|dapi[0-9a-f]{32}|key-[0-9a-f]{32}"
    r"|AGE-SECRET-KEY-1[A-Z0-9]{16,})"
    r"|(?<=hooks\.slack\.com/services/)[\w/]+|(?<=/api/webhooks/)\d+/[\w-]+"
)
_HEX: Final = re.compile(r"(?<![\w/.@-])(?=[0-9]*[a-f])[0-9a-f]{40}(?!\w)")
_COMMIT: Final = re.compile(r"(?i)(?:commit|revision|rev|sha1?|ref|hash|head|digest|tree|git)\W*$")
_LOGIN: Final = re.compile(r"(://[^\s/:@]{0,80}:)(?!\d+(?:[/?\s]|$))[^\s\"']{0,200}(@)(?=[\w\[])")
_USER: Final = re.compile(r"(://)(?=[^\s/@]{0,40}\d)[A-Za-z0-9_-]{16,200}(@)")
_BARE_LOGIN: Final = re.compile(
    r"(?<![\w.+/-])([A-Za-z][\w.+-]*:)(?!//)[^\s:@/\"']+(@)(?!sha\d)(?=[A-Za-z]|\d+\.\d+\.\d+)"
)
_USER_OPTION: Final = re.compile(
    r"((?<![\w-])(?:-u|--user)[\"']?[,\s]\s*[\"']?[A-Za-z][\w.+-]*:)(?!//)[^\s\"',]+()"
)
_NETRC: Final = re.compile(r"(\blogin\s+\S+\s+password\s+)\S+()")
_HEADER: Final = re.compile(
    r"(?i)(\b(?:(?:proxy-)?authorization|(?:set-)?cookie)[\"']?\s*[:=]\s*[rbf]?[\"']?"
    r"(?:(?:bearer|basic|token|digest|apikey|negotiate)\s+)?)(?!\*)[^\s\"',)}][^\"'\n)}]*()"
)
_BEARER: Final = re.compile(
    r"(\b[Bb](?:earer|EARER)\s+)(?!(?i:tokens?|auth\w*|header|scheme|realm|credentials?)\b)"
    r"[\w.~+/=-]{4,}()"
)
_QUERY: Final = re.compile(r"(?<=[?&])([\w.%-]+)(=)([^&#\s\"'<>]+)")
_QUERY_NAMES: Final = _words("sig signature key code auth hmac sas awsaccesskeyid x-amz-signature"
    " x-goog-signature")  # fmt: skip
_VALUE: Final = (
    r"\\?\"(?:[^\"\\]|\\(?!\"))*\\?\"|\\?'(?:[^'\\]|\\(?!'))*\\?'|\[[^\]\n]{0,400}\]"
    r"|[^\s\"',;&(){}\[\]<>]+"
)
_PAIR: Final = re.compile(
    r"(?<![\w.-])(-{0,2}[A-Za-z][\w.-]*)((?:\\?[\"'])?\]?\s*(?:=>|:=|[:=])\s*[rbfu]?)"
    rf"({_VALUE})(?![\w.]*\()"
)
_SPOKEN: Final = re.compile(
    r"(?i)(?<![\w-])(passw(?:or)?d|passphrase|(?:api|access|secret|private)[ _-]key"
    r"|(?:access|auth|api)[ _-]token)((?:\s+[a-z]+){0,2}(?:\s*[:=]\s*|\s+)[\"']?)"
    r"(?=[^\s\"',;]*\d|(?<=[\"']))([^\s\"',;]+)"
)
_OPTION: Final = re.compile(
    r"(?<![\w-])(--[A-Za-z][\w.-]*)([\"']?[,\s]\s*[\"']?)(?!-)([^\s\"',\])]+)"
)
_WHOLE: Final = (_LOGIN, _USER, _BARE_LOGIN, _USER_OPTION, _NETRC, _HEADER, _BEARER)


def masked_text(text: str) -> str:
    """A message, URL or JSON text with what looks secret masked."""
    return _masked_pairs(_masked_shapes(text), code=False)


def _masked_shapes(text: str) -> str:
    text = _SHAPES.sub(MASK, text)
    for pattern in _WHOLE:
        text = pattern.sub(rf"\1{MASK}\2", text)
    return _HEX.sub(lambda at: at[0] if _COMMIT.search(text[: at.start()][-20:]) else MASK, text)


def _masked_pairs(text: str, code: bool) -> str:
    """`code`: text outside strings, where a value is an expression unless it looks random."""

    def replace(found: re.Match[str]) -> str:
        name, between, value = found.groups()
        bare = value.strip("\\\"'[]")
        quoted, random = value != bare, _looks_random(bare)
        if code and not (quoted or random):
            return found[0]
        told = quoted or "=" in between
        return f"{name}{between}{_in_quotes(value)}" if _is_secret(name, bare, told) else found[0]

    def replace_query(found: re.Match[str]) -> str:
        secret = found[1].lower() in _QUERY_NAMES or secrecy(found[1])
        return f"{found[1]}={MASK}" if secret else found[0]

    def replace_option(found: re.Match[str]) -> str:
        keep = not secrecy(found[1]) or _HARMLESS_VALUE.match(found[3])
        return found[0] if keep else f"{found[1]}{found[2]}{MASK}"

    text = _QUERY.sub(replace_query, text)
    text = _PAIR.sub(replace, text)
    if code:
        return text
    text = _SPOKEN.sub(rf"\1\2{MASK}", text)
    return _OPTION.sub(replace_option, text)


def _is_secret(name: str, value: str, told: bool) -> bool:
    """Whether a named value is a secret; `told`: it is set or quoted, not merely mentioned."""
    level = secrecy(name)
    if not level or _HARMLESS_VALUE.match(value):
        return False
    if level is Secrecy.PERHAPS and name.lower().endswith("key"):
        return _looks_random(value) and len(value) >= 16
    return level is Secrecy.SURE or told or _looks_random(value)


def _looks_random(value: str) -> bool:
    return bool(re.search(r"\d", value) and re.search(r"[A-Za-z]", value)) or len(value) >= 24


def _in_quotes(value: str) -> str:
    """A mask in the quotes or brackets the value had."""
    found = re.match(r"(\\?[\"'\[])?", value)
    begin = found[0] if found else ""
    return f"{begin}{MASK}{begin.replace('[', ']')}"


_LITERAL: Final = re.compile(r"\"(?:[^\"\\]|\\.)*(?:\"|$)|'(?:[^'\\]|\\.)*(?:'|$)|#.*")
_ASSIGNED: Final = re.compile(
    r"([A-Za-z_][\w.-]{0,99})(?:[\"']\s*\]|[\"'])?\s*(?:\:\s*[\w.\[\]| ]{1,99})?(?:=|:|==|!=)"
    r"\s*\(?[rbfuRBFU]{0,2}$"
)
_FALLBACK: Final = re.compile(
    r"(?:get|getenv|setdefault|setenv|pop|setattr)\(.*[\"']([\w.-]+)[\"']\s*,\s*[rbfuRBFU]{0,2}$"
)
_SECOND: Final = re.compile(
    r"\b((?:auth\s*=\s*|login|sign_in|authenticate|\w+Auth)\()[^,()]*,\s*[rbfuRBFU]{0,2}$"
)
_DEFAULT: Final = re.compile(r"[\"']--?([\w.-]+)[\"'].*\b(?:default|const)\s*=\s*[rbfuRBFU]{0,2}$")


def masked_source(line: str) -> str:
    """A line of Python with secret strings masked, and those assigned or passed to secret names."""
    made, last = [], 0
    for found in _LITERAL.finditer(line):
        before, literal = line[: found.start()], found[0]
        made.append(_masked_pairs(_masked_shapes(line[last : found.start()]), code=True))
        last = found.end()
        content = literal.strip("\"'")
        given = (pattern.search(before) for pattern in (_ASSIGNED, _FALLBACK, _DEFAULT))
        told = not content.startswith(("<", "["))  # as tokens of a vocabulary are written
        secret = any(_is_secret(one[1], content, told) for one in given if one)
        secret = secret or _SECOND.search(before) is not None
        masked = secret and not literal.startswith("#")
        made.append(_in_quotes(literal) if masked else masked_text(literal))
    return "".join([*made, _masked_pairs(_masked_shapes(line[last:]), code=True)])


def masked_values(value: Any, but: frozenset[str] = frozenset()) -> Any:
    """JSON with all its strings masked, except under the names in `but`."""
    if isinstance(value, str):
        return masked_text(value)
    if isinstance(value, dict):
        return {k: one if k in but else masked_values(one, but) for k, one in value.items()}
    if isinstance(value, list | tuple):
        return [masked_values(one, but) for one in value]
    return value


def kept_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that bear on performance, and no others."""
    return {
        name: MASK if secrecy(name) else masked_text(value)
        for name, value in sorted(environ.items())
        if name.startswith(_KEPT)
    }


_PLAIN_P: Final = re.compile(
    r"[\d.,:xe+-]+%?|(?:bf|fp|f|tf|int|uint|float|bfloat)?\d+(?:[-_](?:mixed|true))?|\S*/\S*|[\w-]+\.[a-z]{1,5}"
)
"""What follows `-p` and is no password: ports, probabilities, precisions, files."""
_ATTACHED_P: Final = re.compile(r"-p(?=\S*\d)(?=\S*[a-z])(?=\S*(?:[A-Z]|[!@#$%^&*?]))\S{6,}")


def masked_arguments(arguments: Iterable[str]) -> list[str]:
    """A command line with what looks secret masked, in `--name value` and `--name=value`."""
    masked: list[str] = []
    option, several = "", False
    for argument in arguments:
        if argument.startswith("-") and len(argument) > 1:
            masked.append(_masked_option(argument))
            option, several = ("" if "=" in argument else argument), False
            continue
        masked.append(_masked_value(option, argument))
        several = several or (option.endswith("s") and secrecy(option) is Secrecy.SURE)
        option = option if several else ""
    return masked


def _masked_value(option: str, value: str) -> str:
    """The value of an option, or a bare argument if `option` is empty."""
    if option == "-p":
        return value if _PLAIN_P.fullmatch(value) or _HARMLESS_VALUE.match(value) else MASK
    if option in ("-u", "--user", "--proxy-user", "--userpwd"):
        value = re.sub(r"^([A-Za-z][^:/\s]*:).+", rf"\1{MASK}", value)
    if option and secrecy(option) and not _HARMLESS_VALUE.match(value):
        return MASK
    commit = _COMMIT.search(option) and _HEX.fullmatch(value)
    return value if commit else _masked_option(value)


def _masked_option(argument: str) -> str:
    if _ATTACHED_P.fullmatch(argument):
        return f"-p{MASK}"
    name, equals, value = argument.partition("=")
    while equals and re.fullmatch(r"[-+~]*[A-Za-z][\w.-]*(?:=[A-Za-z][\w.-]*)*", name):
        if secrecy(name.rpartition("=")[2]):
            return argument if _HARMLESS_VALUE.match(value) else f"{name}={MASK}"
        after, equals, value = value.partition("=")
        name = f"{name}={after}"
    return masked_text(argument)
