"""Serves the page of a host or node over HTTP, with Starlette and uvicorn (imported here only).

It runs in a thread of its own, and asks the control socket as `ternmesh status` does, only while a
page is open: neither a slow browser nor many of them take time from a round.
"""

import asyncio
import contextlib
import hmac
import json
import logging
import socket as sockets
import threading
import time
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from ternmesh.errors import TernmeshError
from ternmesh_service.control_socket import ANSWER_S, BOARDS, DATA, ControlError, NotServed, ask
from ternmesh_service.fair_listener import FairListener
from ternmesh_service.page.config import PageConfig, read_token
from ternmesh_service.page.parts import ROUND, Parts, Row, parts, steadied
from ternmesh_service.status import BoardStatus, HostStatus, Status, ask_status
from transports.mqtt.tls import check_certificate

ROUNDS_MAX = 200  # rounds that are shown


class PageFeed:
    """Numbered parts. A reader asks for what is newer than the number that it has.

    So a slow reader gets the newest state, not all states, and costs no memory.
    """

    def __init__(self) -> None:
        self.number = 0
        self.rounds: dict[int, Row] = {}  # by version
        self._run = ""
        self._began = 0  # the number from which on a reader must forget what it has
        self._parts: dict[str, object] = {}
        self._written: dict[str, tuple[int, str]] = {}  # number of the change and JSON

    @property
    def version(self) -> int:
        """The newest round that is here: a status need not have it again."""
        return max(self.rounds, default=0)

    def take_rounds(self, status: HostStatus | BoardStatus) -> None:
        """Keep the rounds of a status; another run begins anew."""
        if status.run != self._run:
            self._run = status.run
            self.rounds.clear()
            self._forget(list(self._parts))
        rows = status.history
        if rows and self.rounds and rows[0].version > self.version + 1:  # some were missed
            self._forget([f"{ROUND}{version}" for version in self.rounds])
            self.rounds.clear()
        for row in rows:
            self.rounds[row.version] = row
        old = sorted(self.rounds)[:-ROUNDS_MAX]
        for version in old:
            del self.rounds[version]
            self._parts.pop(f"{ROUND}{version}", None)  # readers drop it themselves
            self._written.pop(f"{ROUND}{version}", None)

    def take(self, parts: Parts) -> bool:
        """Keep the parts; whether one has changed. Rounds that are not among them stay."""
        before = self.number
        self._forget([n for n in self._parts if n not in parts and not n.startswith(ROUND)])
        for name, part in parts.items():
            self.put(name, part, before + 1)
        return self.number > before

    def put(self, name: str, part: object, number: int = 0) -> bool:
        """Keep one part, with the number of its change, by default a new one; whether it is one."""
        kept = steadied(self._parts.get(name), part)
        if name in self._parts and kept == self._parts[name]:
            return False
        self.number = number or self.number + 1
        self._parts[name] = kept
        self._written[name] = self.number, json.dumps(kept, separators=(",", ":"))
        return True

    def _forget(self, names: Collection[str]) -> None:
        """Parts are gone: readers begin anew."""
        for name in names:
            self._parts.pop(name, None)
            self._written.pop(name, None)
        if names:
            self.number += 1
            self._began = self.number

    def since(self, number: int) -> str:
        """What has changed after `number`, as JSON: {"number", "anew", "parts"}; empty if nothing.

        With "anew", the reader forgets what it has.
        """
        if number >= self.number:
            return ""
        anew = number < self._began or number == 0
        parts = ",".join(
            f"{json.dumps(name)}:{text}"
            for name, (changed, text) in self._written.items()
            if anew or changed > number
        )
        return f'{{"number":{self.number},"anew":{str(anew).lower()},"parts":{{{parts}}}}}'


STATIC = Path(__file__).with_name("static")
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
READERS_MAX, KEPT = 32, 8  # open pages; how many of them only those with the token may open
CONNECTIONS_MAX = 100  # without the token; a further one ends another
REQUEST_S = 10.0  # for the head of a request, and for its body
STALL_S = 60.0  # a reader that takes nothing for so long is left
ACTIONS_MAX, SAMPLES_S = 8, 60.0  # at once; the longest wait for an answer about samples
REQUEST_MAX = 1 << 16  # bytes of an action
POLL_S, POLL_LONGEST_S = 1.0, 10.0
SHARE = 30  # the least time between two polls, in times that the last one took
ALIVE_S = 15.0  # after so long without news a line goes out, so that a proxy keeps the connection
# The requests to the control socket that the page may make: the values of each, and further keys
ACTIONS: Mapping[str, tuple[frozenset[str], frozenset[str]]] = {
    BOARDS: (frozenset(), frozenset({"set", "mute"})),
    DATA: (
        frozenset({"queue", "labelled", "label", "unlabel", "worst", "record"}),
        frozenset({"limit", "keys", "label", "count"}),
    ),
}
NO_ACTION = "this is no action of the page: load it again"
POLICY = "Content-Security-Policy"
HEADERS = {
    POLICY: "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Connection": "close",  # each has one request, so none can hold its connection with more
}

_log = logging.getLogger(__name__)


class RequestRefused(TernmeshError):
    """A request is refused, with its HTTP status."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class _Connection(H11Protocol):
    """A connection: it is closed where no request comes, or where nothing is read."""

    _stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.loop.call_later(REQUEST_S, self._close_if_idle)

    def _close_if_idle(self) -> None:
        if self.cycle is None:
            self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled = self.loop.call_later(STALL_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stalled is not None:
            self._stalled.cancel()


class _Json(JSONResponse):
    """JSON in ASCII: names of files may have lone surrogates, which UTF-8 cannot have."""

    def render(self, content: object) -> bytes:
        return json.dumps(content).encode()


class Page:
    """Answers the requests of browsers. All calls come from the event loop of its thread."""

    def __init__(
        self, config: PageConfig, token: str, socket: Path, listener: FairListener
    ) -> None:
        self._listener = listener
        self._config = config
        self._token = token
        self._socket = socket
        self._feed = PageFeed()
        self._news = asyncio.Event()  # of the next change; each change has its own
        self._has_ended = False
        self._wanted = asyncio.Event()
        self._readers = self._actions = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        own = {config.address, "localhost", sockets.gethostname(), *config.names}
        self._names = {name.lower() for name in own}

    def app(self) -> Starlette:
        routes = [
            Route("/", self._guarded(self._static), methods=["GET"]),
            Route("/static/{name}", self._guarded(self._static), methods=["GET"]),
            Route("/events", self._guarded(self._events), methods=["GET"]),
            Route("/act", self._guarded(self._act), methods=["POST"]),
        ]
        other = {HTTPException: self._guarded(self._nothing)}
        app = Starlette(routes=routes, lifespan=self._lifespan, exception_handlers=other)
        app.router.redirect_slashes = False
        return app

    @contextlib.asynccontextmanager
    async def _lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        self._loop = asyncio.get_running_loop()
        task = asyncio.create_task(self._poll())
        yield
        task.cancel()

    def end(self) -> None:
        """End all open pages; from another thread."""

        def ending() -> None:
            self._has_ended = True
            self._announce()

        if self._loop is not None:
            self._loop.call_soon_threadsafe(ending)

    def _announce(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _guarded(self, handler: Any) -> Any:
        """A handler behind the checks of all requests; a refusal is a sentence."""

        async def answer(request: Request, _error: object = None) -> Response:
            try:
                self._check_origin(request)
                response: Response = await handler(request)
            except RequestRefused as error:
                response = _Json({"error": str(error)}, error.status)
            except ControlError as error:
                response = _Json({"error": str(error)}, 502)
            except (ClientDisconnect, OSError) as error:
                _log.warning("a request of the page failed: %r", error)
                response = _Json({"error": "the host cannot do this now: see its log"}, 502)
            response.headers.update(HEADERS)
            if self._config.ingress:  # Home Assistant shows it in a frame of its own site
                policy = HEADERS[POLICY].replace("frame-ancestors 'none'", "frame-ancestors 'self'")
                response.headers[POLICY] = policy
            return response

        return answer

    async def _nothing(self, _request: Request) -> Response:
        raise RequestRefused(404, "there is no such page")

    def _check_origin(self, request: Request) -> None:
        """Refuse what another site makes a browser ask, also by a name that it points here."""
        host, ingress = request.headers.get("host", ""), self._config.ingress
        if ingress and (request.client is None or request.client.host != ingress):
            raise RequestRefused(403, f"this page answers {ingress} alone: open it from there")
        if not ingress and _host_name(host) not in self._names:
            raise RequestRefused(
                403, "this name is not one of the page's: add it to [page] names, or use another"
            )
        hosts = {host, request.headers.get("x-forwarded-host", host) if ingress else host}
        origin = request.headers.get("origin")
        if request.method == "POST" and (origin is None or origin.partition("//")[2] not in hosts):
            raise RequestRefused(403, "an action must come from this page")

    def _check_token(self, request: Request) -> None:
        sent = request.headers.get("authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(sent.encode(), self._token.encode()):
            raise RequestRefused(
                401, "this needs the token: open the address that `ternmesh page` prints"
            )
        if request.client is not None:
            self._listener.keep((request.client.host, request.client.port))

    async def _static(self, request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        path = next((path for path in STATIC.iterdir() if path.name == name), None)
        if path is None:
            return await self._nothing(request)
        content = path.read_bytes()
        if self._config.ingress:  # whoever comes through it is the owner
            given = b'name="token" content="%s"' % self._token.encode()
            content = content.replace(b'name="token" content=""', given)
        return Response(content, media_type=TYPES[path.suffix])

    async def _events(self, request: Request) -> Response:
        readers_max = READERS_MAX - KEPT
        if self._config.is_open or "authorization" in request.headers:
            self._check_token(request)
            readers_max = READERS_MAX
        if self._readers >= readers_max:
            raise RequestRefused(503, f"{self._readers} pages are open: close one")
        return StreamingResponse(self._stream(readers_max), media_type="text/event-stream")

    async def _stream(self, readers_max: int) -> AsyncIterator[str]:
        if self._readers >= readers_max:  # others have come at the same time
            return
        self._readers += 1
        self._wanted.set()
        number = 0
        try:
            while not self._has_ended:
                news = self._news
                text = self._feed.since(number)
                number = self._feed.number
                yield f"data: {text}\n\n" if text else ": alive\n\n"
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(news.wait(), ALIVE_S)
        finally:
            self._readers -= 1
            if not self._readers:
                self._wanted.clear()

    async def _poll(self) -> None:
        """Keep the feed new while somebody reads it."""
        trouble = ""
        while True:
            await self._wanted.wait()
            began = time.monotonic()
            try:
                since = max(0, self._feed.version - 1)
                status = await asyncio.to_thread(ask_status, self._socket, since)
                has_changed = self._take(status, time.time())
                trouble = ""
            except Exception as error:  # noqa: BLE001  (an answer of any kind: it must stop nothing)
                if trouble != (trouble := f"no news: {error}"):
                    _log.warning("the page has %s (%s)", trouble, type(error).__name__)
                has_changed = self._feed.put("trouble", trouble)
            if has_changed:
                self._announce()
            took_s = time.monotonic() - began
            await asyncio.sleep(min(max(POLL_S, SHARE * took_s), POLL_LONGEST_S))

    def _take(self, status: Status, now: float) -> bool:
        """Take a status; whether it has news. ValueError where it is of no host or board."""
        if not isinstance(status, HostStatus | BoardStatus):
            raise ValueError(f"the page shows a host or a board, not a {status.role}")
        self._feed.take_rounds(status)
        rounds = [self._feed.rounds[version] for version in sorted(self._feed.rounds)]
        return self._feed.take(parts(status, rounds, now))

    async def _act(self, request: Request) -> Response:
        """Pass an action on to the process."""
        self._check_token(request)
        try:
            asked = dict(json.loads(await _body(request, REQUEST_MAX)))
            key = next(key for key in ACTIONS if key in asked)
        except (ValueError, TypeError, StopIteration, RecursionError) as error:
            raise RequestRefused(400, NO_ACTION) from error
        values, further_keys = ACTIONS[key]
        if (values and str(asked[key]) not in values) or not asked.keys() <= {key, *further_keys}:
            raise RequestRefused(400, NO_ACTION)
        if self._actions >= ACTIONS_MAX:
            raise RequestRefused(503, "too many actions at once: wait for the answers")
        self._actions += 1
        try:
            wait_s = SAMPLES_S if key == DATA else ANSWER_S
            return _Json(await asyncio.to_thread(ask, self._socket, asked, wait_s))
        finally:
            self._actions -= 1


def _host_name(host: str) -> str:
    """The name in a Host header, without its port and the brackets of IPv6."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return name.lower()


async def _body(request: Request, size_max: int) -> bytes:
    body = bytearray()
    try:
        async with asyncio.timeout(REQUEST_S):
            async for block in request.stream():
                body += block
                if len(body) > size_max:
                    raise RequestRefused(413, f"an action has at most {size_max:,} bytes")
    except TimeoutError as error:
        raise RequestRefused(408, "the action did not arrive in time: try again") from error
    return bytes(body)


@contextmanager
def serving(config: PageConfig, socket: Path, folder: Path) -> Iterator[None]:
    """Serve the page in a thread; ConfigError where the address or the files cannot be used."""
    with contextlib.ExitStack() as stack:
        try:
            if config.certificate_file and config.key_file:
                check_certificate(config.certificate_file, config.key_file)
            listener = FairListener(config.address, config.port, CONNECTIONS_MAX)
            stack.enter_context(listener)
            page = Page(config, read_token(folder), socket, listener)
            settings = uvicorn.Config(
                page.app(),
                loop="asyncio",
                http=_Connection,
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_graceful_shutdown=1,
                ssl_certfile=config.certificate_file,
                ssl_keyfile=config.key_file,
            )
            settings.load()
        except (OSError, ValueError) as error:
            raise NotServed(
                f"[page] cannot be served on {config.address} port {config.port}: "
                f"{getattr(error, 'strerror', None) or error}"
            ) from error
        server, log = uvicorn.Server(settings), logging.getLogger("uvicorn.error")
        log.setLevel(logging.ERROR)  # a request that is none is no news
        thread = threading.Thread(target=server.run, args=([listener],), name="page", daemon=True)
        thread.start()
        _log.info(
            "the page is on %s; `ternmesh page` prints the address with its token", config.url
        )
        try:
            yield
        finally:
            log.setLevel(logging.CRITICAL)  # that it closes open pages is no error
            server.should_exit = True
            page.end()
            thread.join(timeout=5.0)
