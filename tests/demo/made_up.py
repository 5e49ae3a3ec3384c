"""A small run that never happened, for tests of what is made from a run."""

from steersman_sim.demo.records import (
    NEW,
    OLD,
    Activity,
    Arrival,
    Closure,
    FleetMax,
    Held,
    Kind,
    Outcome,
    Phase,
    Records,
    Weights,
)

BEGAN = 1000.0
URLS = {"engine-1": "http://127.0.0.1:9001", "engine-2": "http://127.0.0.1:9002"}


def outcome(number=1, *, sent=1.0, **changes) -> Outcome:
    """A good answer of engine-1 with the old weights; times are seconds of the run."""
    fields = {
        "kind": Kind.GENERATE,
        "latest_only": False,
        "session": None,
        "ended": BEGAN + sent + 0.3,
        "worker": URLS["engine-1"],
        "version": OLD,
    }
    return Outcome(number=number, sent=BEGAN + sent, **(fields | changes))


def arrival(request=1, *, at=1.01, engine="engine-1", versions=(OLD,)) -> Arrival:
    """The same request in the engine's journal."""
    return Arrival(
        engine=engine, at=BEGAN + at, request=request, path="/generate", versions=versions
    )


def records(*, outcomes=(), arrivals=(), maxima=((OLD, 0.0),), closures=(), **changes) -> Records:
    """A run of two engines."""
    return Records(
        engines=tuple(URLS),
        urls=URLS,
        began=BEGAN,
        outcomes=list(outcomes),
        arrivals=list(arrivals),
        maxima=[FleetMax(version=version, since=BEGAN + since) for version, since in maxima],
        closures=[
            Closure(engine=engine, since=BEGAN + since, until=BEGAN + until)
            for engine, since, until in closures
        ],
        **changes,
    )


def eventful_run() -> Records:
    """Ten seconds in which engine-1 is refitted between 3 and 5, without a broken promise."""
    outcomes, arrivals = [], []
    for number in range(1, 201):
        sent = number * 0.05
        engine = "engine-2" if 3 <= sent < 5 or number % 2 else "engine-1"
        version = NEW if engine == "engine-1" and sent >= 5 else OLD
        latest_only = number % 4 == 0 and (sent < 5 or version == NEW)
        outcomes.append(
            outcome(
                number,
                sent=sent,
                latest_only=latest_only,
                worker=URLS[engine],
                version=version,
            )
        )
        arrivals.append(arrival(number, at=sent + 0.004, engine=engine, versions=(version,)))
    return records(
        outcomes=outcomes,
        arrivals=arrivals,
        maxima=((OLD, 0.0), (NEW, 5.2)),
        closures=[("engine-1", 3.0, 5.0)],
        ended=BEGAN + 10.4,
        phases=[
            Phase(
                engine="engine-1",
                activity=Activity.DRAINING,
                since=BEGAN + 2.6,
                until=BEGAN + 3.0,
            ),
            Phase(engine="engine-1", activity=Activity.REFIT, since=BEGAN + 3.0, until=BEGAN + 5.0),
        ],
        weights=[
            Weights(engine="engine-1", version=OLD, since=BEGAN),
            Weights(engine="engine-2", version=OLD, since=BEGAN),
            Weights(engine="engine-1", version=NEW, since=BEGAN + 5.0),
        ],
        held=[Held(at=BEGAN + 0.1 * n, count=n % 7 if 30 <= n < 50 else 0) for n in range(100)],
        held_total=12,
    )
