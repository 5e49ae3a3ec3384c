"""``steersman table init``: write a first table file by asking the engines what they are."""

import argparse
import asyncio
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import aiohttp
import msgspec

from steersman.cli import EXIT_FAILED, EXIT_OK, EXIT_USAGE
from steersman.documents import parse_document
from steersman.documents.key_files import read_key
from steersman.documents.urls import engine_url
from steersman.documents.values import positive_seconds
from steersman.errors import DocumentError
from steersman_proxy.tablefile import read_table_file
from steersman_proxy.tablefile.discovery import Finding, NotIdentified, Reply, identify
from steersman_proxy.tablefile.render import Asked, one_line, pools_of, render

MAX_ANSWER = 1024**2
"""Bytes of an engine's answer that are read; a model card has a few hundred."""


class TableCommand:
    """Make and look at table files."""

    help = "make a table file (`steersman table init --engine URL ...`)"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
        about = "write a first table by asking the engines"
        init = actions.add_parser("init", help=about, description=about, allow_abbrev=False)
        init.add_argument(
            "--engine",
            action="append",
            required=True,
            metavar="URL",
            help="base URL of an engine; may be given several times",
        )
        init.add_argument("--pool", metavar="NAME", help="name of the pool, if there is one only")
        init.add_argument(
            "--output",
            metavar="FILE",
            help="file to write, .yaml or .yml (default: standard output)",
        )
        init.add_argument("--force", action="store_true", help="overwrite an existing file")
        init.add_argument("--api-key-file", metavar="FILE", help="the key of the engines")
        init.add_argument(
            "--timeout", default="5s", metavar="TIME", help="for one engine, such as 500ms (5s)"
        )

    def run(self, args: argparse.Namespace) -> int:
        try:
            urls = list(dict.fromkeys(_url(text) for text in args.engine))
            key = _key(args.api_key_file)
            output = _output(args.output, force=args.force)
            timeout = _timeout(args.timeout)
        except ValueError as error:
            return _refuse(str(error), code=EXIT_USAGE)
        asked = asyncio.run(ask_all(urls, key=key, timeout=timeout))
        for engine in asked:
            print(_said(engine), file=sys.stderr)
        failed = [engine for engine in asked if engine.finding is None]
        if len(failed) == len(asked):
            return _refuse("no engine could be identified, so no table is written")
        pools = pools_of(asked, name=args.pool)
        if args.pool is not None and len(pools) > 1:
            models = ", ".join(pool.models[0] for pool in pools)
            return _refuse(f"--pool names one pool, but the engines serve several models: {models}")
        text = render(pools, failed=failed)
        try:
            read_table_file(parse_document("table.yaml", text.encode()))
        except DocumentError as error:
            return _refuse(f"the engines' answers do not make a valid table: {error}")
        if output is None:
            print(text, end="")
        else:
            try:
                _write(output, text)
            except OSError as error:
                return _refuse(f"{output} cannot be written: {error.strerror}")
            print(f"wrote {output}", file=sys.stderr)
        # A table without some of the engines is useful, but a script must notice.
        return EXIT_FAILED if failed else EXIT_OK


async def ask_all(urls: Sequence[str], *, key: str | None, timeout: float) -> list[Asked]:
    """Ask all engines at once; ``timeout`` is for each, in seconds."""
    headers = {"Authorization": f"Bearer {key}"} if key is not None else {}
    async with aiohttp.ClientSession(headers=headers) as session:
        return list(await asyncio.gather(*(_ask(session, url, timeout=timeout) for url in urls)))


async def _ask(session: aiohttp.ClientSession, url: str, *, timeout: float) -> Asked:
    try:
        async with asyncio.timeout(timeout):
            return Asked(url=url, finding=await _converse(session, url))
    except NotIdentified as reason:
        return Asked(url=url, problem=str(reason))
    except TimeoutError:
        return Asked(url=url, problem=f"TimedOut: no answer within {timeout:g} s")
    except aiohttp.ClientConnectorError as error:
        return Asked(url=url, problem=f"Unreachable: {error.strerror or error}")
    except aiohttp.ClientError as error:
        return Asked(url=url, problem=f"NotAnEngine: {str(error) or type(error).__name__}")


async def _converse(session: aiohttp.ClientSession, url: str) -> Finding:
    conversation = identify()
    try:
        path = next(conversation)
        while True:
            path = conversation.send(await _get(session, url + path))
    except StopIteration as end:
        finding: Finding = end.value
        return finding


async def _get(session: aiohttp.ClientSession, url: str) -> Reply:
    async with session.get(url, allow_redirects=False) as response:
        body = await response.content.read(MAX_ANSWER)
        while len(body) < MAX_ANSWER and (more := await response.content.read(MAX_ANSWER)):
            body += more
    try:
        return Reply(response.status, msgspec.json.decode(body))
    except msgspec.DecodeError:
        return Reply(response.status)


def _said(engine: Asked) -> str:
    finding = engine.finding
    if finding is None:
        return one_line(f"{engine.url}: {engine.problem}")
    version = f"weight version {finding.version}" if finding.version else "no weight version"
    note = f" ({finding.note})" if finding.note else ""
    names = " ".join(finding.models)
    return one_line(f"{engine.url}: {finding.runtime}, {names}, {version}{note}")


def _url(text: str) -> str:
    try:
        return engine_url(text)
    except ValueError as error:
        raise ValueError(f"--engine: {error}") from None


def _key(name: str | None) -> str | None:
    try:
        return None if name is None else read_key(Path(name))
    except ValueError as error:
        raise ValueError(f"--api-key-file: {error}") from None


def _timeout(text: str) -> float:
    try:
        return positive_seconds(float(text) if text.replace(".", "", 1).isdigit() else text)
    except ValueError as error:
        raise ValueError(f"--timeout: {error}") from None


def _output(name: str | None, *, force: bool) -> Path | None:
    if name is None:
        return None
    path = Path(name)
    if path.suffix.lower() not in {".yaml", ".yml"}:
        raise ValueError(f"--output: {name} must end in .yaml or .yml")
    if path.exists() and not force:
        raise ValueError(f"--output: {name} exists; --force overwrites it")
    if not path.parent.is_dir():
        raise ValueError(f"--output: there is no directory {path.parent}")
    return path


def _write(path: Path, text: str) -> None:
    """Write by rename, so that a proxy that watches the file never sees half of it."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        # mkstemp makes files for their owner only; a table holds no secrets.
        temporary.chmod(0o644)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def _refuse(message: str, *, code: int = EXIT_FAILED) -> int:
    print(f"steersman table init: {message}", file=sys.stderr)
    return code


command = TableCommand()
