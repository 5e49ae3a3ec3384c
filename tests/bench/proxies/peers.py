"""What is measured: how each proxy is found, which settings it gets, how it is started.

A proxy that is not there is not left out in silence: :func:`find` then returns the reason, and the
result has it in its row.
"""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

KEY = "sk-bench-1c1f7d1e"
"""The key that all clients send. Steersman checks it; the others pass it on."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where one proxy runs."""

    folder: Path
    """Of its own, for its files."""
    port: int
    """For clients."""
    admin_port: int
    """For metrics, where they have a port of their own."""
    engines: Sequence[int]
    """Ports of the engines on 127.0.0.1."""
    model: str
    weight_version: str

    def urls(self) -> list[str]:
        return [f"http://127.0.0.1:{port}" for port in self.engines]


@dataclass(frozen=True)
class Found:
    """A proxy that is installed."""

    version: str
    program: str


@dataclass(frozen=True)
class Missing:
    """A proxy that is not."""

    why: str


@dataclass(frozen=True, kw_only=True)
class Subject:
    """One proxy with one configuration."""

    name: str
    find: Callable[[Path | None], Found | Missing]
    command: Callable[[str, Place], Sequence[str]]
    """Writes what files it needs and returns the command."""
    settings: str
    """What a reader must know of its configuration."""
    package: str = ""
    """On PyPI, with the version that the goals are about."""
    quick: bool = False
    """Whether ``--quick`` measures it."""
    requires: dict[str, str] = field(default_factory=dict)
    """Headers that its answers must have, or it does not do the work that is claimed."""


# ------------------------------------------------------------------------------------- steersman


def _find_steersman(_: Path | None) -> Found | Missing:
    words = [f"{library} {version(library)}" for library in ("uvloop", "aiohttp")]
    python = f"Python {platform.python_version()}"
    return Found(f"{version('steersman')} ({', '.join([python, *words])})", sys.executable)


def _steersman(adapter: str) -> Callable[[str, Place], Sequence[str]]:
    def command(program: str, place: Place) -> Sequence[str]:
        table = place.folder / "table.yaml"
        engines: list[dict[str, Any]] = [
            {"url": url, "runtime": "sglang", "weightVersion": place.weight_version}
            for url in place.urls()
        ]
        pool = {"name": "bench", "model": place.model, "engines": engines}
        table.write_text(json.dumps({"pools": [pool]}))
        config = place.folder / "proxy.yaml"
        config.write_text(
            json.dumps(
                {
                    "listen": {"port": place.port, "adapter": adapter},
                    "metrics": {"port": place.admin_port},
                    "auth": {"apiKeys": [KEY]},
                    "routing": {"policy": "round_robin", "versionPolicy": "latest-only"},
                    "logging": {"level": "warning", "access": False},
                    "table": {"file": str(table)},
                }
            )
        )
        return [program, "-m", "steersman.cli", "proxy", "--config", str(config)]

    return command


# --------------------------------------------------------------------------------- from the system


def _find_system(program: str, *words: str) -> Callable[[Path | None], Found | Missing]:
    def find(_: Path | None) -> Found | Missing:
        path = shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
        if path is None:
            return Missing(f"apt-get install {program}")
        told = subprocess.run([path, *words], capture_output=True, text=True, check=False)
        number = re.search(r"\d+(\.\d+)+\S*", told.stdout + told.stderr)
        return Found(number[0] if number else "unknown", path)

    return find


NGINX = """\
{user}worker_processes 1;
daemon off;
pid {folder}/pid;
error_log stderr error;
events {{ worker_connections 8192; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  keepalive_requests 100000000;
  client_max_body_size 0;
  client_body_buffer_size 64k;
  upstream engines {{
    {servers}
    keepalive 2048;
    keepalive_requests 100000000;
  }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{
      proxy_pass http://engines;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_set_header Host $http_host;
      proxy_buffering off;
      proxy_buffer_size 16k; proxy_buffers 8 16k;
      proxy_read_timeout 30m;
    }}
  }}
}}
"""


def _nginx(program: str, place: Place) -> Sequence[str]:
    config = place.folder / "nginx.conf"
    config.write_text(
        NGINX.format(
            # Started by root, its worker would be somebody else, who may not enter the folder.
            user="user root;\n" if os.geteuid() == 0 else "",
            folder=place.folder,
            port=place.port,
            servers=" ".join(f"server 127.0.0.1:{port};" for port in place.engines),
        )
    )
    return [program, "-e", "stderr", "-p", str(place.folder), "-c", str(config)]


HAPROXY = """\
global
  nbthread 1
  maxconn 8192
defaults
  mode http
  option http-no-delay
  option abortonclose
  timeout connect 5s
  timeout client 30m
  timeout server 30m
  timeout http-keep-alive 75s
frontend clients
  bind 127.0.0.1:{port} backlog 4096
  default_backend engines
backend engines
  balance roundrobin
  http-reuse always
  {servers}
"""


def _haproxy(program: str, place: Place) -> Sequence[str]:
    config = place.folder / "haproxy.cfg"
    servers = [f"server e{port} 127.0.0.1:{port}" for port in place.engines]
    config.write_text(HAPROXY.format(port=place.port, servers="\n  ".join(servers)))
    return [program, "-db", "-f", str(config)]


# -------------------------------------------------------------------------------------- from PyPI


def _find_package(package: str) -> Callable[[Path | None], Found | Missing]:
    name = package.partition("==")[0]

    def find(peers: Path | None) -> Found | Missing:
        if peers is None:
            return Missing(f"looked for with --peers DIR; --install puts {package} there")
        python = peers / name / "bin" / "python"
        if not python.exists():
            return Missing(f"not below --peers; --install puts {package} there")
        asked = f"from importlib.metadata import version; print(version({name!r}))"
        told = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=False)
        if told.returncode:
            return Missing(f"{package} is not in the environment {name} below --peers")
        return Found(told.stdout.strip(), str(python.parent))

    return find


def install(subject: "Subject", peers: Path) -> None:
    """Put the subject's package into an environment of its own below ``peers``."""
    name = subject.package.partition("==")[0]
    subprocess.run([sys.executable, "-m", "venv", "--clear", peers / name], check=True)
    pip = peers / name / "bin" / "pip"
    subprocess.run([pip, "install", "--quiet", subject.package], check=True)


def _gateway(place: Place) -> list[str]:
    """The arguments that the three have in common, as they descend from one program."""
    return [
        *("--host", "127.0.0.1", "--port", str(place.port)),
        *("--worker-urls", *place.urls()),
        *("--policy", "round_robin", "--log-level", "error"),
        *("--prometheus-host", "127.0.0.1", "--prometheus-port", str(place.admin_port)),
    ]


def _smg(bin_folder: str, place: Place) -> Sequence[str]:
    return [f"{bin_folder}/smg", "launch", *_gateway(place), "--disable-tokenizer-autoload"]


def _sglang_router(bin_folder: str, place: Place) -> Sequence[str]:
    return [f"{bin_folder}/python", "-m", "sglang_router.launch_router", *_gateway(place)]


def _vllm_router(bin_folder: str, place: Place) -> Sequence[str]:
    return [f"{bin_folder}/vllm-router", *_gateway(place)]


# --------------------------------------------------------------------------------------- all of them

STEERSMAN = "steersman"
DIRECT = "direct"
GATEWAYS = ("smg", "sglang-router", "vllm-router")

_OURS = (
    "table file, policy latest-only, routing keys, stamps, breaker, metrics, an API key that is "
    "checked; access log off"
)
_STAMPED = {"x-smg-weight-version": "7"}
_DEFAULTS = "round robin, log level error; everything else as it comes"

SUBJECTS: tuple[Subject, ...] = (
    Subject(
        name=DIRECT,
        find=lambda _: Found("-", ""),
        command=lambda _program, _place: (),
        settings="no proxy: the load generator talks to the first engine",
        quick=True,
    ),
    Subject(
        name=STEERSMAN,
        find=_find_steersman,
        command=_steersman("splice"),
        settings=_OURS,
        quick=True,
        requires=_STAMPED,
    ),
    Subject(
        name="steersman-aiohttp",
        find=_find_steersman,
        command=_steersman("aiohttp"),
        settings=f"the same with `listen.adapter: aiohttp`: {_OURS}",
        quick=True,
        requires=_STAMPED,
    ),
    Subject(
        name="nginx",
        find=_find_system("nginx", "-v"),
        command=_nginx,
        settings="one worker, keep-alive to the engines, `proxy_buffering off` as streams need it",
        quick=True,
    ),
    Subject(
        name="haproxy",
        find=_find_system("haproxy", "-v"),
        command=_haproxy,
        settings="one thread, `http-reuse always`; `http-no-delay` and `abortonclose`, as streams need",
        quick=True,
    ),
    Subject(
        name="smg",
        find=_find_package("smg==1.13.0"),
        command=_smg,
        package="smg==1.13.0",
        settings=_DEFAULTS,
    ),
    Subject(
        name="sglang-router",
        find=_find_package("sglang-router==0.3.2"),
        command=_sglang_router,
        package="sglang-router==0.3.2",
        settings=_DEFAULTS,
    ),
    Subject(
        name="vllm-router",
        find=_find_package("vllm-router==0.1.17"),
        command=_vllm_router,
        package="vllm-router==0.1.17",
        settings=_DEFAULTS,
    ),
)
