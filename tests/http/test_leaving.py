"""The end of listening, on both event loops: who has connected by then is answered, not reset."""

import socket
from contextlib import ExitStack
from pathlib import Path

from steersman_sim.engine import EngineConfig
from tests.http.adapter import post
from tests.proxy.support import rig


def whole(sock: socket.socket) -> bytes:
    """All that comes until the other end closes; a reset is an error."""
    answer = b""
    while part := sock.recv(2**16):
        answer += part
    return answer


async def test_requests_that_cross_with_the_end_of_listening_are_answered(tmp_path: Path) -> None:
    async with rig(tmp_path, {"e0": "7"}, config=EngineConfig(speed=0)) as world:
        with ExitStack() as stack:
            # These calls block, so that the loop has seen nothing of them when it is told to leave.
            clients = [
                stack.enter_context(socket.create_connection(("127.0.0.1", world.app.port)))
                for _ in range(100)
            ]
            for client in clients:
                client.sendall(post(b'{"text": "hello"}'))
            await world.app.drain()
            answers = [whole(client) for client in clients]
        for answer in answers:
            assert answer.startswith((b"HTTP/1.1 200 ", b"HTTP/1.1 503 "))
            assert b"\r\nConnection: close\r\n" in answer
