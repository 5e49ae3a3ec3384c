"""``load_only``: the engine with the fewest requests in flight, in turn among equals."""

from collections.abc import Callable

from steersman_proxy.load.levels import LoadLevels, rotate
from steersman_proxy.routing.eligible import Eligible
from steersman_proxy.routing.engines import Engine


class LoadOnly:
    """Equal engines take turns.

    Always preferring the first of equals would send every request of a quiet fleet to one engine.
    """

    __slots__ = ("_engines", "_levels")

    def __init__(self, levels: LoadLevels, *, engines: tuple[Engine, ...]) -> None:
        self._levels = levels
        self._engines = engines

    def choose(self, eligible: Eligible) -> Engine:
        return self._take(eligible, self._levels.least(eligible.mask))

    def choose_admitted(
        self, eligible: Eligible, admits: Callable[[Engine], bool]
    ) -> Engine | None:
        for level in self._levels.ascending(eligible.mask):
            left = level
            while left:
                engine = self._take(eligible, left)
                if admits(engine):
                    return engine
                left &= ~(1 << engine.index)
        return None

    def _take(self, eligible: Eligible, level: int) -> Engine:
        """The next engine of ``level`` in the rotation.

        Here the cursor is a position in the pool, not among the eligible engines.
        """
        position = eligible.cursor = rotate(level, after=eligible.cursor)
        return self._engines[position]
