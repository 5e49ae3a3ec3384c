"""The real engine's own virtual environment: made once, from pinned versions, outside the tree."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent
REQUIREMENTS = HERE / "requirements.txt"

DIRECTORY = "STEERSMAN_REAL_ENGINE_DIR"
"""Where the environment is kept; by default in the user's cache."""

SWITCH = "STEERSMAN_REAL_ENGINE"
"""``skip`` leaves the real engine out, and says so."""

LEFT_OUT = f"the real engine was left out, since {SWITCH} is `skip`"

COMPLETE = ".complete"
"""A file in an environment that was installed to the end."""


def left_out() -> bool:
    """Whether whoever runs the tests wants none of this."""
    return os.environ.get(SWITCH) == "skip"


def directory() -> Path:
    """Where environments are kept."""
    if named := os.environ.get(DIRECTORY):
        return Path(named).absolute()
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "steersman" / "real-engine"


def python() -> Path:
    """The interpreter of the environment, which is made if it is missing: 2 GB are downloaded then.

    It goes by the pins and the version of Python, so that other pins make another one.
    """
    pins = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()[:12]
    home = directory()
    home.mkdir(parents=True, exist_ok=True)
    environment = home / f"py{sys.version_info.major}{sys.version_info.minor}-{pins}"
    interpreter = environment / "bin" / "python"
    with _alone(home / f"{environment.name}.lock"):
        if not (environment / COMPLETE).exists():
            _install(environment, interpreter)
    return interpreter


def lock() -> None:
    """Write the pins again."""
    subprocess.run(
        [
            *(sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-config"),
            *("--universal", "--python-version", "3.11", "--no-annotate", "--generate-hashes"),
            *("--override", "overrides.txt", "--excludes", "excludes.txt", "--upgrade"),
            *("--custom-compile-command", "python -m tests.real_engine lock"),
            *("--output-file", REQUIREMENTS.name, "requirements.in"),
        ],
        cwd=HERE,
        env=_environment_of_uv(),
        check=True,
    )


def _install(environment: Path, interpreter: Path) -> None:
    began = time.monotonic()
    print(f"installing the real engine into {environment} (2 GB, once)", flush=True)
    shutil.rmtree(environment, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    # uv, since pip takes seven times as long. The pins are complete, and against what the packages
    # themselves ask for in one place (overrides.txt): hence no look at dependencies.
    subprocess.run(
        [
            *(sys.executable, "-m", "uv", "pip", "install", "--quiet", "--no-config"),
            *("--python", interpreter, "--no-deps", "--require-hashes", "-r", REQUIREMENTS),
        ],
        env=_environment_of_uv(),
        check=True,
        preexec_fn=_politely,
    )
    (environment / COMPLETE).touch()
    print(f"installed in {time.monotonic() - began:.0f} s", flush=True)


def _environment_of_uv() -> dict[str, str]:
    """uv has settings of its own; where packages come from is what pip was told."""
    found = dict(os.environ)
    for name in ("PIP_FIND_LINKS", "UV_FIND_LINKS"):
        found.pop(name, None)
    if index := found.get("PIP_INDEX_URL"):
        found.setdefault("UV_DEFAULT_INDEX", index)
    return found


def _politely() -> None:
    os.nice(10)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Of several runs one installs, and the others wait for it."""
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
