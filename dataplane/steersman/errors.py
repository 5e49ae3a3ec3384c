"""Every error that Steersman raises or answers, in one tree.

Each class carries a code, an HTTP status where it can reach a client, and a remedy: what the reader
can do about it. ``docs/errors.md`` is made from this module.

An error that is answered has the body ``{"error": {"type", "code", "message", "param"}}`` and the
header ``x-smg-error-code``, as clients of SMG and of OpenAI expect.
"""

from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

if TYPE_CHECKING:
    from steersman.table import Epoch


class SteersmanError(Exception):
    """The root. ``str()`` is a full sentence for a person, with the place where it applies."""

    code: ClassVar[str] = "internal_error"
    remedy: ClassVar[str] = "This is a fault in Steersman; please report it with the log."


# --- What people write -----------------------------------------------------------------------------


class InvalidVersion(SteersmanError, ValueError):
    """A text is not a weight version."""

    code = "invalid_version"
    remedy = "Use 1 to 128 visible ASCII characters without spaces, such as 7 or step-120."


class DocumentError(SteersmanError):
    """A file that a person wrote cannot be used; says file, line and key.

    ``problems`` are single sentences, each naming its place.
    """

    code = "invalid_document"
    remedy = "Correct the named line; `steersman check FILE` shows all problems at once."

    def __init__(self, path: str, problems: list[str]) -> None:
        self.path = path
        self.problems = problems
        super().__init__("\n".join(problems) if problems else f"{path}: unusable")


class ProxyUnreachable(SteersmanError):
    """A command asked a proxy and got no answer, or one that is not a proxy's."""

    code = "proxy_unreachable"
    remedy = (
        "Give the URL of the proxy's metrics port with --proxy, such as http://127.0.0.1:29000."
    )


class ControlProtocolError(SteersmanError):
    """What came over the control socket is not a message, or one beyond the limits."""

    code = "control_protocol"
    remedy = (
        "Run operator and proxies of the same or neighbouring releases; let nobody else reach the "
        "control socket."
    )


class UnusableTable(ControlProtocolError):
    """A table came over the control socket that this process cannot use.

    ``session`` and ``epoch`` are those of the message, for the answer.
    """

    code = "unusable_table"
    remedy = ControlProtocolError.remedy

    def __init__(self, message: str, *, session: int, epoch: "Epoch") -> None:
        super().__init__(message)
        self.session = session
        self.epoch = epoch


# --- What is answered to a client ------------------------------------------------------------------


class RequestError(SteersmanError):
    """An error that the proxy answers itself."""

    status: ClassVar[int] = 500
    retry_after: float | None = None
    """Seconds for the ``Retry-After`` header; ``None`` sends none."""

    @property
    def details(self) -> dict[str, Any]:
        """Further members of the error object."""
        return {}

    def body(self) -> bytes:
        """The JSON body of the answer."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        error = {"type": kind, "code": self.code, "message": str(self), "param": None}
        return msgspec.json.encode({"error": error | self.details})


class ProxyFault(RequestError):
    """A fault of the proxy itself. The request may have reached an engine."""

    code = "proxy_fault"
    remedy = SteersmanError.remedy


class InvalidVersionPolicy(RequestError):
    """The version policy of a header, of a file or of a command is not in the grammar."""

    code = "invalid_version_policy"
    status = 400
    remedy = "Use any, latest-only, min-version:<v> or max-staleness:<k>."

    def __init__(self, text: str) -> None:
        shown = ascii(text[:160])
        super().__init__(
            f"{shown} is not a version policy; {self.remedy[0].lower()}{self.remedy[1:]}"
        )


class Fault(StrEnum):
    """Where a request breaks the rules of HTTP/1.1; a bounded label of metrics."""

    REQUEST_LINE = "request_line"
    VERSION = "version"
    METHOD = "method"
    HEADER = "header"
    HOST = "host"
    LENGTH = "content_length"
    CODING = "transfer_encoding"
    EXPECTATION = "expectation"
    BODY = "body"
    SIZE = "size"
    SLOW = "slow"
    TLS = "tls"
    OTHER = "other"


class InvalidRequest(RequestError):
    """The request cannot be understood, or two readers could understand it in two ways."""

    code = "invalid_request"
    status = 400
    remedy = "Correct the request; the message names the place."

    def __init__(self, message: str, *, fault: Fault | None = None) -> None:
        super().__init__(message)
        self.fault = fault
        """``None`` for a request that is HTTP, and still not understood."""


class TargetTooLong(InvalidRequest):
    """The request line is longer than a whole head may be."""

    code = "target_too_long"
    status = 414
    remedy = "Send long parameters in the body."


class HeadTooLarge(InvalidRequest):
    """The head of the request has too many bytes or too many headers."""

    code = "head_too_large"
    status = 431
    remedy = "Send fewer or shorter headers; docs/http.md has the limits."


class RequestTimeout(InvalidRequest):
    """The head of the request did not come whole in time."""

    code = "request_timeout"
    status = 408
    remedy = "Send a request's head at once."


class ExpectationFailed(InvalidRequest):
    """The request expects something other than ``100-continue``."""

    code = "expectation_failed"
    status = 417
    remedy = "Leave the `Expect` header out, or send `100-continue`."


class MethodNotImplemented(InvalidRequest):
    """No route takes the method."""

    code = "method_not_implemented"
    status = 501
    remedy = "Use the methods of docs/routes.md, in capitals. The proxy opens no tunnels (CONNECT)."


class HttpVersionNotSupported(InvalidRequest):
    """The request is of another version of HTTP than 1.1 or 1.0."""

    code = "http_version_not_supported"
    status = 505
    remedy = "Speak HTTP/1.1; HTTP/2 ends at a load balancer in front of the proxy."


class InvalidBody(RequestError):
    """The body had to be read to find its pool, and is not a JSON object with one text ``model``."""

    code = "invalid_body"
    status = 400
    remedy = "Send a JSON object with a text `model`, or name the pool in x-steersman-pool."


class ModelRequired(RequestError):
    """The request names no model, and several pools could be meant."""

    code = "model_required"
    status = 400
    remedy = (
        "Name a `model` in the body or a pool in x-steersman-pool, or mark one pool as default."
    )


class CacheBusy(RequestError):
    """Some engine has requests running and did not flush its cache; ``results`` names it."""

    code = "cache_busy"
    status = 400
    remedy = "Ask again, or pause the engines first. Trainers poll until the answer is 200."


class Unauthorized(RequestError):
    """The request carries no key, or a wrong one."""

    code = "unauthorized"
    status = 401
    remedy = "Send `Authorization: Bearer <key>` with one of the proxy's keys."


class AdminKeyRequired(RequestError):
    """The route changes engines and takes the admin key only."""

    code = "admin_key_required"
    status = 403
    remedy = "Send the admin key as `Authorization: Bearer <key>`."


class UnknownRoute(RequestError):
    """The path is none of the proxy's routes. Nothing is forwarded by guess."""

    code = "unknown_url"
    status = 404
    remedy = "See docs/routes.md for the paths that the proxy serves."


class ModelNotFound(RequestError):
    """No pool serves the model."""

    code = "model_not_found"
    status = 404
    remedy = "Ask for one of the models that GET /v1/models lists."


class MethodNotAllowed(RequestError):
    """The path exists, the method does not; the header ``Allow`` lists those that do."""

    code = "method_not_allowed"
    status = 405
    remedy = "Use one of the methods in the `Allow` header."


class BodyTooLarge(RequestError):
    """The body is over the limit, by its Content-Length or by what has arrived."""

    code = "body_too_large"
    status = 413
    remedy = "Send less, or raise `maxBodyBytes` in the proxy's configuration."


class NoAvailableEngine(RequestError):
    """No engine may take the request now, and waiting would not help.

    ``reasons`` counts the pool's engines by the reason that keeps each out.
    """

    code = "no_available_workers"
    status = 503
    remedy = "See `steersman explain MODEL` for each engine's reason."
    retry_after = 1.0

    def __init__(self, message: str, *, reasons: dict[str, int] | None = None) -> None:
        super().__init__(message)
        self.reasons = reasons or {}

    @property
    def details(self) -> dict[str, Any]:
        return {"reasons": self.reasons}


class TargetUnavailable(NoAvailableEngine):
    """The engine that ``x-smg-target-worker`` names is unknown or may not take the request."""

    code = "target_unavailable"
    remedy = (
        "Name an eligible engine by id or URL, or leave the header out. No other engine is tried."
    )


class HoldTimeout(NoAvailableEngine):
    """The request waited for an engine for as long as it may."""

    code = "hold_timeout"
    remedy = "Raise `hold.timeout`, or see why the engines stay closed: `steersman explain MODEL`."


class HoldFull(NoAvailableEngine):
    """Too many requests, or too many bytes, are waiting already."""

    code = "hold_full"
    remedy = "Send fewer requests at once, or raise `hold.maxRequests` and `hold.maxBytes`."


class NoTable(NoAvailableEngine):
    """The proxy has no fleet table yet."""

    code = "no_table"
    remedy = "Check the table file, or that the operator is reachable."


class ControlStale(NoAvailableEngine):
    """The proxy has lost the operator, and cannot prove what the request insists on.

    Requests that take any version go on by the last table, unless the pool is fenced.
    """

    code = "control_stale"
    remedy = (
        "Check that the operator runs and can be reached from the proxy. Meanwhile requests with "
        "the version policy `any` are served, except in pools with `onUnreachableProxy: Fence`."
    )


class RequestCut(RequestError):
    """The operator had the requests on the engine ended, to change the engine."""

    code = "request_cut"
    status = 503
    remedy = (
        "Send the request again. To let requests end by themselves, raise `drain.timeoutSeconds`."
    )
    retry_after = 1.0


class Draining(NoAvailableEngine):
    """The proxy is shutting down."""

    code = "draining"
    remedy = "Send the request again; another replica will take it."


class UpstreamError(RequestError):
    """The engine failed before its answer could be passed on."""

    code = "upstream_error"
    status = 502
    remedy = "See the engine's log; the header x-smg-routed-worker-id names it."


class UpstreamUnreachable(UpstreamError):
    """No connection to the engine could be made; the request was not sent."""

    code = "upstream_unreachable"


class UpstreamIncomplete(UpstreamError):
    """The engine closed the connection before its answer was whole. It may have run the request."""

    code = "upstream_body_incomplete"


class UpstreamProtocol(UpstreamError):
    """What the engine sent is not HTTP."""

    code = "upstream_protocol_error"


class UpstreamTimeout(UpstreamError):
    """The engine did not answer in time. It may have run the request."""

    code = "upstream_timeout"
    status = 504
    remedy = "Raise the timeout named in the message, or see why the engine is slow."


class RequestStale(RequestError):
    """The request was in flight for longer than any request may be. The engine may have run it."""

    code = "request_stale"
    status = 504
    remedy = "Raise `timeouts.stale`, or see why the request did not end."


# --- What the operator answers to a wish -----------------------------------------------------------


class EditError(RequestError):
    """A wish such as a pause cannot be carried into the resource that has to hold it."""

    status = 422


class ResourceNotFound(EditError):
    """There is no such resource, or it has no such engine."""

    code = "resource_not_found"
    status = 404
    remedy = "Name one of those that `steersman get` lists."


class EditRefused(EditError):
    """The wish does not fit what is wanted already, so it may rest on a mistake."""

    code = "edit_refused"
    status = 409
    remedy = "Use the verb that the message names."


class NotAwaiting(EditError):
    """No engine of the pool waits for the weights of that version."""

    code = "not_awaiting"
    status = 409
    remedy = (
        "See `steersman rollout status POOL` for what its engines wait for; `steersman refit` asks for "
        "a version."
    )


class ManifestChanged(EditError):
    """The file has just been changed by somebody else, and that has not been read yet."""

    code = "manifest_changed"
    status = 409
    remedy = "Try again in a second."


class ManifestNotWritable(EditError):
    """The file of the resource cannot be read or written."""

    code = "manifest_not_writable"
    status = 409
    remedy = "Make file and directory writable for the operator, or change the file yourself."


class ManifestUnusable(EditError):
    """The file of the resource has errors; its last good version is in force."""

    code = "manifest_unusable"
    status = 422
    remedy = "Mend the file first; the message names the lines."


class EditImpossible(EditError):
    """The place in the file cannot be changed without changing something else, too."""

    code = "edit_impossible"
    status = 422
    remedy = "Make the change that the message names with an editor."


class EditInvalid(EditError):
    """With the change the resource would contradict itself."""

    code = "edit_invalid"
    status = 422
    remedy = "Change what the message names first."
