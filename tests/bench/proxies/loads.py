"""The loads, and what is read from one run of one of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tests.bench.proxies.pair import Work

Sample = dict[str, float]
"""The figures of one run, by name; see :data:`UNITS`."""

UNITS = {
    "cpu_us": "µs of CPU (user and system) of the proxy per request, or per chunk of a stream",
    "per_second": "answers, or chunks, that arrived per second",
    "carried": "chunks that arrived, as a share of those that the streams should have",
    "busy": "share of its core that the proxy used",
    "p50_us": "median time from a request to the end of its answer, µs",
    "ttft_us": "median time from a request to the first byte of its answer's body, µs",
    "ttft_added_us": "the same, less that of the round's direct run, µs",
    "delay_p50_us": "median time from a chunk's sending by the engine to its arrival, µs",
    "delay_p99_us": "99th percentile of it, µs",
    "rss_mb": "resident memory of the proxy at the end of the window, MB (10⁶ bytes)",
    "rss_kb_per_stream": "that, less the idle one of the same process, per stream, kB (10³ bytes)",
    "starved": "connections that waited for an answer from before the window until after it",
    "engine_us": "µs of CPU of the engines, per request or chunk",
    "load_us": "µs of CPU of the load generator, per request or chunk",
}


@dataclass(frozen=True, kw_only=True)
class Load:
    """One load; its title is named with every figure that was measured under it."""

    name: str
    title: str
    work: Work

    @property
    def streams(self) -> bool:
        return self.work.chunks > 0

    def shortened(self) -> "Load":
        """The same for ``--quick``: the code paths, not the figures."""
        chunks = min(self.work.chunks, 15)
        seconds, warm_up = (0.4, 0.3) if self.streams else (0.25, 0.1)
        return replace(
            self, work=replace(self.work, seconds=seconds, warm_up=warm_up, chunks=chunks)
        )

    def sample(self, counted: Mapping[str, Any]) -> Sample:
        """The figures of what the load generator counted."""
        seconds, cpu = counted["seconds"], counted["cpu_us"]
        units = counted["chunks"] if self.streams else counted["answers"]
        per_second = units / seconds
        sample = {
            "cpu_us": cpu["proxy"] / units,
            "per_second": per_second,
            "busy": cpu["proxy"] / 1e6 / seconds,
            "starved": counted["starved"],
            "rss_mb": counted["rss_kb"] * 1024 / 1e6,
            "engine_us": cpu["engine"] / units,
            "load_us": cpu["load"] / units,
        }
        if self.streams:
            sample["carried"] = per_second / self.work.offered()
            sample["delay_p50_us"] = counted["chunk_delay_us"]["p50"]
            sample["delay_p99_us"] = counted["chunk_delay_us"]["p99"]
            if "ttft_us" in counted:  # no stream began in the window of a very short run
                sample["ttft_us"] = counted["ttft_us"]["p50"]
        else:
            sample["p50_us"] = counted["latency_us"]["p50"]
        return sample


def _buffered() -> Load:
    """Small answers in one piece, as from a scorer or a judge."""
    work = Work(connections=32, seconds=1.2, warm_up=0.3)
    return Load(name="buffered", title="1 KB answers, 32 connections", work=work)


def _buffered_256() -> Load:
    """The same with more connections than fit one turn of an event loop."""
    work = Work(connections=256, seconds=1.2, warm_up=0.3)
    return Load(name="buffered-256", title="1 KB answers, 256 connections", work=work)


def _large() -> Load:
    """Long prompts and answers with log-probabilities: bytes, not requests."""
    work = Work(
        connections=32, seconds=1.2, warm_up=0.3, body_bytes=32 << 10, answer_bytes=64 << 10
    )
    return Load(name="large", title="32 KiB in, 64 KiB out, 32 connections", work=work)


def _streams(streams: int) -> Load:
    """Streams of 100 chunks, one every 20 ms; a window is as long as one stream."""
    work = Work(connections=streams, seconds=2.0, warm_up=0.8, chunks=100)
    return Load(name=f"sse-{streams}", title=f"{streams:,} streams × 50 chunks/s", work=work)


LOADS: Sequence[Load] = (
    _buffered(),
    _buffered_256(),
    _large(),
    _streams(200),
    _streams(1000),
)

WARM_UP = Work(connections=32, seconds=0.4, warm_up=0.1)
"""What every proxy has served before its idle memory is read."""
