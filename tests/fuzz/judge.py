"""Whether what the world saw of an example is what must come of it."""

import json

from tests.fuzz.example import Example
from tests.fuzz.expected import STAMPS, Prediction, Sent, Step, Tail, Want, predict
from tests.fuzz.strict import Answered, Received, Unframed, read_answers, values
from tests.fuzz.world import Observed

REFUSALS = frozenset({400, 408, 413, 414, 417, 431, 501, 505})
"""What the proxy says to what is no proper request."""


def judge(example: Example, observed: Observed) -> list[str]:
    """Everything that is wrong; empty if all is well."""
    faults = list(observed.faults)
    try:
        answers = answers_of(observed)
    except Unframed as error:
        return [*faults, f"the client cannot read its answers: {error}"]
    prediction = predict(example)
    faults += _sides(prediction, observed, answers)
    if not faults and not example.leaves_early:
        faults += _requests(prediction, observed.requests)
        faults += _answers(prediction, answers, observed)
    return faults


def answers_of(observed: Observed) -> list[Answered]:
    """The answers as the client reads them; raises :class:`Unframed`."""
    methods = [record.method.encode() for record in observed.records]
    return read_answers(observed.answers, methods=methods, ended=observed.ended)


def _sides(prediction: Prediction, observed: Observed, answers: list[Answered]) -> list[str]:
    """What holds of every example, however odd."""
    faults = []
    finals = [answer for answer in answers if answer.status >= 200 or not answer.status]
    if len(finals) > len(observed.records) + 1:
        faults.append(f"{len(finals)} answers, but {len(observed.records)} records")
    if len(observed.requests) > sum(max(record.attempts, 1) + 1 for record in observed.records):
        faults.append(f"the engine got {len(observed.requests)} requests")
    faults += ["an answer after a broken one" for answer in answers[:-1] if not answer.whole]
    if prediction.tail is not Tail.ODD and len(observed.requests) > len(prediction.requests):
        extra = observed.requests[len(prediction.requests)].raw
        faults.append(f"the engine must not get {extra[:300]!r}")
    return faults


def compare(example: Example, one: Observed, other: Observed) -> list[str]:
    """How two runs of one example differ, in what the engine, the client and the log saw."""
    faults = []
    if one.deaf or other.deaf or example.leaves_early:
        return []
    if [request.raw for request in one.requests] != [request.raw for request in other.requests]:
        faults.append(f"the engine got {_raws(one)}, or {_raws(other)}")
    try:
        answers = [answers_of(one), answers_of(other)]
    except Unframed:
        return faults  # `judge` tells of it
    tail = predict(example).tail
    hopeless = tail is Tail.ODD and not example.sent.endswith(b"\r\n\r\n")
    if tail is Tail.UNFINISHED or (hopeless and "open" in (one.ended, other.ended)):
        # A hopeless beginning of a request may be refused at once or waited for.
        answers = [some[:-1] if some and _is_refusal(some[-1]) else some for some in answers]
        one, other = (run._replace(ended="", records=()) for run in (one, other))
    # Whether a client is told to go on depends on how much of its body is here already.
    seen = [[_seen(answer) for answer in some if answer.status != 100] for some in answers]
    if seen[0] != seen[1] and not _overtaken(one, other, seen):
        faults.append(f"the client read {one.answers[:1500]!r}, or {other.answers[:1500]!r}")
    broken = any(some and not some[-1].whole for some in answers)
    # A broken answer may as well end in a reset; a whole one could be lost to it.
    if one.ended != other.ended and not (broken and "open" not in (one.ended, other.ended)):
        faults.append(f"the connection ended as {one.ended}, or {other.ended}")
    if _log(one) != _log(other):
        faults.append(f"the records are {one.records}, or {other.records}")
    return faults


def _log(observed: Observed) -> list[object]:
    """The records; of what was refused as no proper request only that it was."""
    return [
        "refused" if record.status in REFUSALS and record.route == "unknown" else record
        for record in observed.records
    ]


def _raws(observed: Observed) -> list[bytes]:
    return [request.raw[:600] for request in observed.requests]


def _seen(answer: Answered) -> tuple[object, ...]:
    """An answer, without the cuts of its chunks; how much of a broken one came is chance, and of
    several faults of a request either may be named.
    """
    if _is_refusal(answer):
        return ("refused", *values(answer.headers, b"x-request-id"))
    return answer.head, answer.body if answer.whole else b"", answer.whole


def _overtaken(one: Observed, other: Observed, seen: list[list[tuple[object, ...]]]) -> bool:
    """Whether a reset, which alone can break an answer without framing, has overtaken it."""
    short, long = sorted(seen, key=len)
    return (one.ended, other.ended) == ("rst", "rst") and long[: len(short)] == short


# --- The engine's side ----------------------------------------------------------------------------


def _requests(prediction: Prediction, received: tuple[Received, ...]) -> list[str]:
    faults = []
    for number, (want, got) in enumerate(zip(prediction.requests, received, strict=False)):
        faults += [f"request {number}: {fault}" for fault in _sent(want, got)]
    return faults


def _sent(want: Sent, got: Received) -> list[str]:
    faults = []
    if (got.method, got.target) != (want.method, want.target):
        faults.append(f"{got.method!r} {got.target!r} for {want.method!r} {want.target!r}")
    if got.body != want.body:
        faults.append(f"body {_short(got.body)} for {_short(want.body)}")
    ours = {b"host", b"content-length", *want.added}
    theirs = [header for header in got.headers if header[0].lower() not in ours]
    if theirs != want.headers:
        faults.append(f"headers {theirs} for {want.headers}")
    if values(got.headers, b"content-length") != [b"%d" % len(want.body)]:
        faults.append(f"Content-Length {values(got.headers, b'content-length')}")
    for name, value in want.added.items():
        if values(got.headers, name) != [value]:
            faults.append(f"{name!r} is {values(got.headers, name)}, not {value!r}")
    return faults


# --- The client's side ----------------------------------------------------------------------------


def _answers(prediction: Prediction, answers: list[Answered], observed: Observed) -> list[str]:
    left = list(answers)
    for number, step in enumerate(prediction.steps):
        interim = 0
        while left and left[0].status == 100 and interim < step.interim:
            left.pop(0)
            interim += 1
        if not left and observed.ended == "rst" and step.wants[0].broken:
            return []  # only a reset can break an answer without framing, and it may overtake
        if not left:
            return [f"no answer to request {number}"]
        got = left.pop(0)
        faults = _step(step, got)
        if faults:
            return [f"answer {number}: {fault}" for fault in faults]
    if len(observed.requests) < len(prediction.requests):
        return [f"the engine got only {len(observed.requests)} requests"]
    return _tail(prediction, left, observed)


def _tail(prediction: Prediction, left: list[Answered], observed: Observed) -> list[str]:
    early = (Tail.UNFINISHED, Tail.REFUSED, Tail.STALLED)
    if prediction.tail in early and left and left[0].status == 100:
        left.pop(0)
    match prediction.tail:
        case Tail.ODD:
            return []
        case Tail.OPEN | Tail.CLOSED if left:
            return [f"nothing asked for {left[0].head[:200]!r}"]
        case Tail.OPEN if observed.ended != "open":
            return ["the connection is closed though it could go on"]
        case Tail.STALLED if len(left) > 1 or (left and left[0].whole):
            return [f"an answer that the engine has not given: {left[0].head[:200]!r}"]
        case Tail.REFUSED if len(left) != 1 or not _is_refusal(left[0]):
            return [f"no refusal ({prediction.why}) but {[answer.head[:200] for answer in left]}"]
        case Tail.UNFINISHED if left and (len(left) > 1 or not _is_refusal(left[0])):
            return [f"for an unfinished request: {left[0].head[:200]!r}"]
        case _:
            return []


def _is_refusal(answer: Answered) -> bool:
    return answer.status in REFUSALS and answer.whole and answer.closes


def _step(step: Step, got: Answered) -> list[str]:
    first: list[str] = []
    for want in step.wants:
        faults = _want(step, want, got)
        if not faults:
            return []
        first = first or faults
    return first


def _want(step: Step, want: Want, got: Answered) -> list[str]:
    if got.status != want.status:
        return [f"status {got.status} for {want.status}: {_short(got.body)}"]
    faults = []
    if want.reason is not None and got.reason != want.reason:
        faults.append(f"reason {got.reason!r} for {want.reason!r}")
    for name, value in want.added.items():
        if values(got.headers, name) != [value]:
            faults.append(f"{name!r} is {values(got.headers, name)}, not {value!r}")
    faults += [f"{name!r} is there" for name in want.absent if values(got.headers, name)]
    if want.closes is not None and got.closes is not want.closes and not want.broken:
        faults.append(f"closes: {got.closes}")
    if want.headers is not None:
        ours = {b"content-length", b"transfer-encoding", b"connection", *STAMPS, *want.added}
        mine = [header for header in want.headers if header[0].lower() not in ours]
        theirs = [header for header in got.headers if header[0].lower() not in ours]
        if theirs != mine:
            faults.append(f"headers {theirs} for {mine}")
        if want.framing is not None and got.framing != want.framing:
            faults.append(f"framing {got.framing} for {want.framing}")
    if want.code is not None and step.method != b"HEAD":
        faults += _error(want, got)
    return faults + _body(step, want, got)


def _body(step: Step, want: Want, got: Answered) -> list[str]:
    if want.broken:
        if got.whole:
            return ["a proper end was made up"]
        if want.body is not None and not want.body.startswith(got.body):
            return [f"body {_short(got.body)} is no beginning of {_short(want.body)}"]
        return []
    if not got.whole:
        return ["the answer is broken"]
    if want.body is not None and step.method != b"HEAD" and got.body != want.body:
        return [f"body {_short(got.body)} for {_short(want.body)}"]
    return []


def _error(want: Want, got: Answered) -> list[str]:
    code = json.loads(got.body)["error"]["code"]
    told = values(got.headers, b"x-smg-error-code")
    return [] if code == want.code and told == [code.encode()] else [f"code {code}, {told}"]


def _short(data: bytes) -> str:
    return f"{data[:200]!r}" + (f"... ({len(data)} bytes)" if len(data) > 200 else "")
