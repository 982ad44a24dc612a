"""What may be kept of a command line and an environment."""

import re
from collections.abc import Iterable, Mapping

MASK = "***"
_KEPT = ("CUDA_", "NCCL_", "OMP_", "MKL_", "TORCH", "PYTORCH_")
_SECRET_NAME = re.compile(
    r"(?i)(?:^|[-_.])"
    r"(?:token|(?:secret|passw(?:or)?d|passphrase|api[-_]?key|access[-_]?key|credential|auth)s?)"
    r"(?:$|[-_.])|(?:^|[-_.])key$"
)
_SECRET_VALUE = re.compile(
    r"(?:^|[\s:=,\"'])(?:hf_|sk-|ghp_|gho_|github_pat_|glpat-|xox[abpr]-|AKIA|AIza|eyJ)[\w\-.]{8,}"
    r"|^[0-9a-f]{40}$"
    r"|://[^/\s:@]+:[^/\s@]+@"
)


def kept_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that bear on performance, and no others."""
    return {
        name: MASK if looks_secret(name, value) else value
        for name, value in sorted(environ.items())
        if name.startswith(_KEPT)
    }


def looks_secret(name: str, value: str) -> bool:
    """Whether a named value looks like a token, key or password."""
    return bool(_SECRET_NAME.search(name) or _SECRET_VALUE.search(value))


def masked_arguments(arguments: Iterable[str]) -> list[str]:
    """A command line with what looks secret masked, `--name value` and `--name=value` alike."""
    masked: list[str] = []
    secret_next = False
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        if secret_next and not argument.startswith("-"):
            masked.append(MASK)
        elif equals and _holds_secret(argument):
            masked.append(f"{name}={MASK}")
        elif _SECRET_VALUE.search(argument):
            masked.append(MASK)
        else:
            masked.append(argument)
        secret_next = argument.startswith("-") and not equals and _names_secret(argument)
    return masked


def _holds_secret(argument: str) -> bool:
    """Whether `name=value`, or `name=name=value`, gives a secret away."""
    *names, value = argument.split("=")
    return any(_names_secret(name) for name in names) or bool(_SECRET_VALUE.search(value))


def _names_secret(name: str) -> bool:
    return bool(_SECRET_NAME.search(name.lstrip("-")))
