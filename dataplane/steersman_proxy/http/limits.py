"""What a client may cost: the limits of the client's side, for every adapter.

None of them can be configured. They are far above what clients of inference engines do, and stand
between a client that does something else and the memory, files and time of all others. They are read
when they are needed (``limits.HEAD_LIMIT``), so that tests can make them small. ``docs/http.md``
lists them.
"""

MAX_HEAD = 64 * 1024
"""Bytes of a request's head, from its first byte to the empty line that ends it."""

MAX_HEADERS = 256
"""Headers of one request."""

MAX_LENGTH_DIGITS = 19
"""Digits of a Content-Length; more have no use, and overflow in some readers."""

MAX_CHUNK_LINE = 256
"""Bytes of the line before a chunk: its size and its extensions, which nobody uses."""

MAX_TRAILERS = 8 * 1024
"""Bytes of the trailers after a chunked body; they are read and dropped."""

HEAD_LIMIT = 60.0
"""Seconds within which a head must come whole, once it has begun."""

KEEP_ALIVE = 3600.0
"""Seconds for which an idle client connection is kept; longer than any load balancer's."""

LINGER = 2.0
"""Seconds for which a refused client is still listened to, so that it sees the answer.

Closing while it sends would reset the connection, and a reset overtakes the answer.
"""

MOMENT = 0.1
"""Seconds for which idle connections are kept when no new ones are accepted any more."""

SURPLUS = 64 * 1024
"""Bytes that a client may send ahead of its next answer, before its connection is read no more."""

WATCH = 1.0
"""Seconds between two looks at a client that is not read, whether it is still there."""

READ_AHEAD = 256 * 1024
"""Bytes of a body that are read before the exchange asks for them."""

WRITE_LIMIT = 64 * 1024
"""Bytes that may wait for a slow client, per connection; then the engine is not read any more."""

TAIL_LIMIT = 600.0
"""Seconds after which the kernel gives up a client that takes nothing, whatever we are doing.

A longer ``client_stall`` makes it longer. It is for the end of an answer, which waits in the
socket's buffer when nobody here waits for it any more.
"""
