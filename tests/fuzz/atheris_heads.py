"""Coverage-guided fuzz of the parts that do no I/O, with atheris (libFuzzer).

    python -m tests.fuzz.atheris_heads --seeds /tmp/seeds
    python -m tests.fuzz.atheris_heads /tmp/seeds -max_total_time=300

The first byte chooses one of :data:`~tests.fuzz.oracles.CHECKS`. atheris is no dependency of the
project; docs/fuzzing.md says how to get it.
"""

import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["steersman_proxy.http", "steersman_proxy.stamping"]):
    from tests.fuzz.oracles import CHECKS, check_answer

from tests.fuzz.corpus import entries


def one(data: bytes) -> None:
    """Run one check on what libFuzzer made."""
    if data:
        CHECKS[data[0] % len(CHECKS)](data[1:])


def write_seeds(folder: Path) -> None:
    """The corpus, as files to begin with."""
    folder.mkdir(parents=True, exist_ok=True)
    for entry in entries():
        texts = [entry.example.sent, *(answer.data for answer in entry.example.answers)]
        for number, data in enumerate(texts):
            for index, check in enumerate(CHECKS):
                method = b"\1" if check is check_answer else b""
                seed = bytes([index]) + b"\x40\x11" + method + data[:4096]
                (folder / f"{entry.folder}-{entry.name}-{number}-{index}").write_bytes(seed)


def main() -> None:
    if sys.argv[1:2] == ["--seeds"]:
        write_seeds(Path(sys.argv[2]))
        return
    atheris.Setup(sys.argv, one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
