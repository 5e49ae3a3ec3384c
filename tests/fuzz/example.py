"""One fuzz example, and its text: what a failure prints, and what a file of the corpus holds."""

import ast
import re
from typing import Any, Literal, NamedTuple, get_args

End = Literal["keep", "fin", "rst"]
Leave = Literal["fin", "rst", "fin early", "rst early"]
Setup = Literal["rl", "relay", "keys"]

KEY = "sesame"
"""The data-plane key of the setup ``keys``."""


class Answer(NamedTuple):
    """What the engine does after a request: writes these pieces, then keeps or ends the connection.

    A piece is what the proxy reads at a time. An answer that is not whole and keeps the connection
    is a stalled one.
    """

    pieces: tuple[bytes, ...]
    end: End = "keep"

    @property
    def data(self) -> bytes:
        return b"".join(self.pieces)


OK = Answer((b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",))
"""The answer to requests beyond those that an example has answers for."""


class Example(NamedTuple):
    """One client's connection, from its first byte to its end."""

    client: tuple[bytes, ...]
    """What the client writes, piece by piece."""
    answers: tuple[Answer, ...] = ()
    """What becomes of the first request that reaches the engine, of the second, and so on."""
    gap: int = 3
    """Turns of the event loop between two pieces, of both sides; 0: none."""
    leave: Leave = "fin"
    """How the client ends the connection once nothing happens any more; or early, a gap after its
    last piece."""
    setup: Setup = "rl"
    take: int = 0
    """Bytes that the client takes at each turn of the loop; 0: all."""

    @property
    def leaves_early(self) -> bool:
        return self.leave.endswith("early")

    @property
    def sent(self) -> bytes:
        return b"".join(self.client)

    def whole(self) -> "Example":
        """The same bytes without any cut."""
        answers = tuple(Answer((answer.data,), answer.end) for answer in self.answers)
        return self._replace(client=(self.sent,), answers=answers)

    def answer(self, number: int) -> Answer:
        """What the engine does with the request that reaches it as ``number``, from 0."""
        return self.answers[number] if number < len(self.answers) else OK


# --- Text ---------------------------------------------------------------------------------------

_RUN = re.compile(rb"(.)\1{63,}", re.DOTALL)
_LITERAL = re.compile(r"(b'.*'|b\".*\")(?: \* (\d+))?")


def dump(example: Example) -> str:
    """The example as text that :func:`load` reads."""
    default = Example(())
    lines = [
        f"{name}: {value}"
        for name in ("setup", "gap", "leave", "take")
        if (value := getattr(example, name)) != getattr(default, name)
    ]
    for piece in example.client:
        lines += _bytes("client", piece)
    for answer in example.answers:
        first, *others = answer.pieces or (b"",)
        lines += _bytes("answer", first)
        for piece in others:
            lines += _bytes("piece", piece)
        if answer.end != "keep":
            lines.append(f"end: {answer.end}")
    return "\n".join(lines) + "\n"


def _bytes(name: str, value: bytes) -> list[str]:
    terms: list[str] = []
    for line in value.splitlines(keepends=True) or [b""]:
        at = 0
        for run in _RUN.finditer(line):
            if line[at : run.start()]:
                terms.append(repr(line[at : run.start()]))
            terms.append(f"{run[1]!r} * {len(run[0])}")
            at = run.end()
        if line[at:] or not line:
            terms.append(repr(line[at:]))
    return [f"{name}: {terms[0]}", *(f"  + {term}" for term in terms[1:])]


def load(text: str) -> Example:
    """Read what :func:`dump` wrote, or a person; ``ValueError`` names the line."""
    fields: dict[str, Any] = {}
    client: list[bytes] = []
    answers: list[tuple[list[bytes], str]] = []
    pieces = client
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        try:
            if stripped.startswith("+ "):
                pieces[-1] += _value(stripped[2:])
                continue
            name, _, value = stripped.partition(": ")
            match name:
                case "client":
                    client.append(_value(value))
                    pieces = client
                case "answer":
                    answers.append(([_value(value)], "keep"))
                    pieces = answers[-1][0]
                case "piece":
                    answers[-1][0].append(_value(value))
                    pieces = answers[-1][0]
                case "end":
                    answers[-1] = (answers[-1][0], _one_of(value, End))
                case "leave":
                    fields["leave"] = _one_of(value, Leave)
                case "setup":
                    fields["setup"] = _one_of(value, Setup)
                case "gap" | "take":
                    fields[name] = int(value)
                case _:
                    raise ValueError(f"{name!r} is no key")
        except (ValueError, SyntaxError, IndexError) as error:
            raise ValueError(f"line {number}: {error}") from None
    made = tuple(
        Answer(tuple(piece for piece in written if piece), end)  # type: ignore[arg-type]
        for written, end in answers
    )
    return Example(tuple(client), made, **fields)


def _value(text: str) -> bytes:
    found = _LITERAL.fullmatch(text)
    if found is None:
        raise ValueError(f"{text[:80]!r} is neither b'...' nor b'...' * number")
    value: bytes = ast.literal_eval(found[1])
    return value * int(found[2] or 1)


def _one_of(value: str, allowed: Any) -> str:
    if value not in get_args(allowed):
        raise ValueError(f"{value!r} is none of {get_args(allowed)}")
    return value
