"""What all exchanges of a process share."""

from collections.abc import Callable

from steersman.clock import Clock
from steersman_proxy.exchange.access import KeyRing
from steersman_proxy.exchange.cors import Cors
from steersman_proxy.exchange.messages import Header
from steersman_proxy.exchange.observer import HealthSink, Observer
from steersman_proxy.routing.fleet import Fleet
from steersman_proxy.settings import ProxySettings


class Context:
    """The fleet, the rules and the listeners."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        settings: ProxySettings,
        observer: Observer,
        health: HealthSink,
        clock: Clock,
        new_request_id: Callable[[], str],
    ) -> None:
        self.fleet = fleet
        self.settings = settings
        self.observer = observer
        self.health = health
        self.clock = clock
        self.now = clock.now
        self.rl_enabled = settings.rl_enabled
        self.buffered_answer_cap = settings.buffered_answer_cap
        self.rid_headers = {
            pool: name.lower().encode() for pool, name in settings.rid_header.items()
        }
        """By pool: the lower-case name of the header for an id of ours."""
        self.engine_keys: dict[str, Header] = {
            pool: (b"Authorization", b"Bearer " + key.encode())
            for pool, key in settings.engine_keys.items()
        }
        """By pool: the header that its engines want."""
        self.new_request_id = new_request_id
        self.keys = KeyRing(api_keys=settings.api_keys, admin_key=settings.admin_key)
        self.cors = Cors(settings.allowed_origins)
        self.leaving = False
        """Set when a shutdown begins. Requests are served as before, but each answer closes its
        connection, so that by the end clients have moved to other proxies by themselves."""
        self.crowded = False
        """Set while clients wait to be accepted, because others keep all connections that there may
        be: each answer then closes its own."""
        self.draining = False
        """Set at the very end of a shutdown, when new requests are turned away."""

    def ends_connections(self) -> bool:
        """Whether a connection is not to be used again after the answer that begins now."""
        return self.leaving or self.crowded or self.draining
