"""The life of one request, without I/O: head, selection, hold, send, relay, finish.

An adapter (``steersman_proxy.http``) owns the sockets and drives one
:class:`~steersman_proxy.exchange.exchange.Exchange` for each request.
"""
