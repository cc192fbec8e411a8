"""The gate: the one address of a federation's server that others can reach.

Flower's SuperLink serves three interfaces at one address: the nodes' (every call is signed with a
registered node key), the operator's (start and stop runs, register nodes) and that of the server's
own processes. The last two ask nobody who they are. So the SuperLink listens on loopback only, and
the gate, with the server's certificate, passes on the nodes' calls and nothing else.

It does three more things that need the same place. It attaches the operator's signature to the app
that nodes download. It tells a node whose clock is wrong, which Flower refuses without a reason. It
passes on a few calls at a time and asks nodes to repeat those that failed inside the SuperLink:
with many nodes its SQLite database is "locked" now and then, and a node told so would stop.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path

from unskew.deploy.signing import verifications
from unskew.types import UnskewError

try:
    import httpx
    import uvicorn
    from flwr.proto.fab_pb2 import GetFabResponse
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route
except ImportError:
    raise UnskewError("The gate needs an extra package: pip install 'unskew[flower]'.") from None

CALLS = frozenset(
    {
        "activate-node",
        "deactivate-node",
        "send-node-heartbeat",
        "pull-messages",
        "push-messages",
        "get-run",
        "get-fab",
        "push-object",
        "pull-object",
        "confirm-message-received",
    }
)
"""The calls of a node whose key the operator has registered."""
MAX_BODY_BYTES = 32 * 2**20
"""Largest request; Flower sends arrays in parts of 5 MiB."""
MAX_CALLS_AT_ONCE = 2
"""Calls passed on at a time. They take milliseconds; more would only wait for the database."""
CALL_SECONDS = 60.0
"""Seconds that the SuperLink has to answer a call."""
IDLE_SECONDS = 2.0
"""Seconds for which an idle connection to the SuperLink is used again; it closes them after 5."""
EARLIEST_SECONDS, LATEST_SECONDS = -300.0, 5.0
"""How far a node's clock may be ahead of the server's, in seconds, as Flower allows it."""

log = logging.getLogger(__name__)


class Gate:
    """Passes nodes' calls on to a SuperLink; ``superlink`` is its address as host:port."""

    def __init__(self, superlink: str, ca: Path, signatures: Path) -> None:
        self._signatures = signatures
        self._turns = asyncio.Semaphore(MAX_CALLS_AT_ONCE)
        self._superlink = httpx.AsyncClient(
            base_url=f"https://{superlink}/v1/fleet/",
            verify=ssl.create_default_context(cafile=str(ca)),
            timeout=CALL_SECONDS,
            limits=httpx.Limits(keepalive_expiry=IDLE_SECONDS),
            trust_env=False,
        )
        self.app = Starlette(routes=[Route("/v1/fleet/{call}", self._pass_on, methods=["POST"])])

    async def _pass_on(self, request: Request) -> Response:
        call = request.path_params["call"]
        if call not in CALLS:
            return Response(status_code=404)
        ahead = seconds_ahead(request.headers.get("flwr-timestamp", ""))
        if ahead is not None and not EARLIEST_SECONDS < ahead < LATEST_SECONDS:
            return _wrong_clock(request, ahead)
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > MAX_BODY_BYTES:
                return Response(status_code=413)
        headers = {
            name: value
            for name, value in request.headers.items()
            if name.startswith("flwr-") or name in ("content-type", "accept")
        }
        try:
            # A heartbeat has 5 seconds; a node whose heartbeats fail is taken to be gone.
            async with nullcontext() if call == "send-node-heartbeat" else self._turns:
                if await request.is_disconnected():  # the node has given up and asks again
                    return Response(status_code=503)
                answer = await self._superlink.post(call, content=bytes(body), headers=headers)
        except httpx.TransportError as error:
            log.warning("The SuperLink does not answer: %r", error)
            return Response(status_code=503)  # nodes repeat the call after a while
        if answer.status_code == 500:
            log.warning("The SuperLink failed in %s; the node will repeat it", call)
            return Response(status_code=503)
        content = answer.content
        if call == "get-fab" and answer.status_code == 200:
            content = self._with_signature(content)
        return Response(content, answer.status_code, media_type=answer.headers.get("content-type"))

    def _with_signature(self, content: bytes) -> bytes:
        """An answer with an app, with the operator's signature if there is one."""
        answer = GetFabResponse.FromString(content)
        answer.fab.verifications.update(verifications(self._signatures, answer.fab.hash_str))
        found: bytes = answer.SerializeToString()
        return found


def seconds_ahead(timestamp: str) -> float | None:
    """How far the clock that made an ISO timestamp is ahead of this machine's, or None if the text
    is no timestamp with a time zone. A call takes a moment, so that a little less is found."""
    try:
        return (datetime.fromisoformat(timestamp) - datetime.now(UTC)).total_seconds()
    except (ValueError, TypeError):
        return None


def _wrong_clock(request: Request, ahead: float) -> Response:
    """Refuse a call in a form that makes a node print the reason and exit with an error."""
    side = "ahead of" if ahead > 0 else "behind"
    said = (
        f"This node's clock is {abs(ahead):.0f} s {side} the server's. Set the clocks, for example "
        "with `timedatectl set-ntp true`, and start the node again."
    )
    log.warning("Node at %s: %s", request.client.host if request.client else "?", said)
    return JSONResponse({"code": 0, "detail": said}, 400)


def serve(host: str, port: int, superlink: str, keys: Path, signatures: Path) -> None:
    """Run the gate at ``host`` and ``port`` until the process is told to stop."""
    for name in ("ca.crt", "server.crt", "server.key"):
        if not (keys / name).exists():
            raise UnskewError(f"There is no {keys / name}; `unskew deploy keys` makes it.")
    uvicorn.run(
        Gate(superlink, keys / "ca.crt", signatures).app,
        host=host,
        port=port,
        ssl_certfile=str(keys / "server.crt"),
        ssl_keyfile=str(keys / "server.key"),
        log_level="warning",
        access_log=False,
        ws="none",
        server_header=False,
    )
