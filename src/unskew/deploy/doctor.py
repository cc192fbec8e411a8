"""Checks of a deployment's set-up: what is wrong, and how to mend it.

The checks read a folder and those below it, whatever part of a deployment it holds: a node's files,
the server's, or everything as ``unskew deploy up`` lays it out. With the address of the gate they
also look at the server from outside.
"""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any, NamedTuple

from unskew.deploy.gate import EARLIEST_SECONDS, LATEST_SECONDS
from unskew.deploy.node_data import CATALOGUE, read_node_data
from unskew.deploy.node_data import VERSION as CATALOGUE_VERSION
from unskew.deploy.signing import TRUSTED, is_signed
from unskew.files import read_json
from unskew.jit import cache_folder
from unskew.types import UnskewError

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from packaging.requirements import Requirement
except ImportError:
    raise UnskewError("The doctor needs an extra package: pip install 'unskew[flower]'.") from None

MIN_DAYS = 30
"""A certificate that expires within this many days is a finding."""
_SECONDS = 10.0
"""Seconds to wait for an answer of the server."""
_SECRET = ("*.key", "*.auth", "superlink.db*", "*.safetensors", "rounds.jsonl", "labels.json")
"""Patterns of files that only their owner may read."""
_CLOSED = ("/v1/control/list-runs", "/v1/control/list-nodes", "/v1/runtime/acquire-task", "/docs")
"""Paths of Flower's other interfaces, which the gate must not serve."""


class Finding(NamedTuple):
    """Whether something is as it should be, and a sentence about it."""

    ok: bool
    text: str


def examine(folder: Path, server: str | None) -> Iterator[Finding]:
    """All checks of a folder and, with the gate's address ``server`` (host:port), of the server."""
    if not folder.is_dir():
        raise UnskewError(f"There is no folder {folder}; name the one with the keys.")
    yield from _versions()
    yield from _certificates(folder)
    yield from _trust(folder)
    yield from _permissions(folder)
    yield from _data(folder)
    if cache_folder() is None:
        yield Finding(False, "No folder for compiled kernels is writable; set NUMBA_CACHE_DIR.")
    if server is not None:
        authority = next(iter(_files(folder, "ca.crt")), None)
        if authority is None:
            yield Finding(False, f"Without a ca.crt in {folder} the server cannot be checked.")
        else:
            yield from _server(server, authority)


def _files(folder: Path, pattern: str) -> list[Path]:
    """Files of this name in a folder and below, without hidden folders (such as ``.venv``)."""
    found = (path for path in folder.rglob(pattern) if path.is_file())
    parts = ((path, path.relative_to(folder).parts) for path in found)
    return sorted(path for path, names in parts if not any(n.startswith(".") for n in names))


def _versions() -> Iterator[Finding]:
    """Whether Flower and cryptography have versions that this unskew was tested with."""
    asked = [Requirement(one) for one in requires("unskew") or ()]
    for one in asked:
        if one.name not in ("flwr", "cryptography"):
            continue
        try:
            found = version(one.name)
        except PackageNotFoundError:
            found = "missing"
        ok = found in one.specifier if found != "missing" else False
        mend = "" if ok else f"; pip install '{one.name}{one.specifier}'"
        yield Finding(ok, f"{one.name} is {found}{mend}")


def _certificates(folder: Path) -> Iterator[Finding]:
    """Whether certificates are in date, signed by the CA beside them, and match their keys."""
    for path in _files(folder, "*.crt"):
        try:
            certificate = x509.load_pem_x509_certificate(path.read_bytes())
        except ValueError:
            yield Finding(False, f"{path} is not a certificate; copy it again from the operator.")
            continue
        wrong = _wrong_with(path, certificate)
        ends = certificate.not_valid_after_utc
        yield Finding(not wrong, wrong or f"{path.name} is valid until {ends:%Y-%m-%d}")


def _wrong_with(path: Path, certificate: Any) -> str:
    """The fault of a certificate in words; empty if it has none."""
    now, again = (
        datetime.now(UTC),
        "delete it and its key, then `unskew deploy keys` makes new ones",
    )
    if now < certificate.not_valid_before_utc:
        return f"{path} is not valid yet; check this machine's date"
    if now + timedelta(days=MIN_DAYS) > certificate.not_valid_after_utc:
        return f"{path} ends on {certificate.not_valid_after_utc:%Y-%m-%d}; {again}"
    authority, key = path.with_name("ca.crt"), path.with_suffix(".key")
    if authority.exists():
        try:
            certificate.verify_directly_issued_by(
                x509.load_pem_x509_certificate(authority.read_bytes())
            )
        except Exception:  # any disagreement in names or signatures
            return f"{path} is not signed by {authority}; {again}"
    if key.exists():
        try:
            private = serialization.load_pem_private_key(key.read_bytes(), None)
            same = private.public_key() == certificate.public_key()
        except ValueError:
            same = False
        if not same:
            return f"{key} does not belong to {path}; {again}"
    return ""


def _trust(folder: Path) -> Iterator[Finding]:
    """Whether nodes know the operator's key, and all signatures are by it."""
    trusted: dict[str, str] = {}
    for path in _files(folder, TRUSTED):
        try:
            keys = json.loads(path.read_text())
            ok = bool(keys) and all(str(key).startswith("ssh-ed25519 ") for key in keys.values())
        except (ValueError, AttributeError):
            keys, ok = {}, False
        trusted |= keys
        said = f"{path.name} names the operator's key; nodes run only apps signed with it"
        yield Finding(ok, said if ok else f"{path} names no key; copy it from the operator")
    nodes = [path for path in _files(folder, "node-*.auth") if not path.with_name(TRUSTED).exists()]
    for path in nodes:
        yield Finding(False, f"There is no {TRUSTED} beside {path}; copy it from the operator")
    for path in _files(folder, "signatures/*.json") if trusted else ():
        ok = is_signed(path, trusted)
        mend = "is by the operator" if ok else "is not by a trusted key; `unskew deploy sign` again"
        yield Finding(ok, f"Signature {path.stem[:12]} {mend}")


def _permissions(folder: Path) -> Iterator[Finding]:
    """Whether keys, data and states are readable by their owner only."""
    secret = {path for pattern in _SECRET for path in _files(folder, pattern)}
    open_to_others = sorted(path for path in secret if path.stat().st_mode & 0o077)
    for path in open_to_others:
        yield Finding(False, f"{path} can be read by others; chmod go= {path}")
    if secret and not open_to_others:
        yield Finding(True, f"{len(secret)} secret files can be read by their owner only")


def _data(folder: Path) -> Iterator[Finding]:
    """Whether nodes' data has the catalogue's items, and no user is on two nodes."""
    catalogue = next(iter(_files(folder, "catalogue.json")), None)
    items, owner = None, dict[int, Path]()
    try:
        if catalogue is not None:
            items = read_json(catalogue, CATALOGUE, CATALOGUE_VERSION)["items"]
            yield Finding(True, f"{catalogue.name} has {len(items):,} items")
        for path in _files(folder, "data.safetensors"):
            data = read_node_data(path.parent)
            if items is not None and list(data.split.item_ids) != items:
                yield Finding(
                    False, f"{path.parent} has other items than {catalogue}; make it anew"
                )
            twice = [user for user in data.users.tolist() if user in owner]
            if twice:
                yield Finding(
                    False,
                    f"{path.parent} and {owner[twice[0]]} both have user {twice[0]}; make one anew "
                    "with another --first-user",
                )
            owner |= dict.fromkeys(data.users.tolist(), path.parent)
    except UnskewError as error:
        yield Finding(False, str(error))


def _server(address: str, authority: Path) -> Iterator[Finding]:
    """Whether the gate answers with a certificate of our CA, has our time, and closes the rest."""
    try:
        status, date = _post(address, authority, "/v1/fleet/pull-messages")
    except ssl.SSLCertVerificationError as error:
        yield Finding(
            False,
            f"{address} is not trusted ({error.verify_message}); the server needs a certificate "
            f"for this name by {authority}: `unskew deploy keys KEYS --host NAME`",
        )
        return
    except (OSError, http.client.HTTPException, ValueError) as error:
        yield Finding(
            False, f"{address} does not answer ({error}); is the gate running, the port open?"
        )
        return
    ok = status in (400, 401, 415, 422)  # an unsigned call of a node is understood and refused
    mend = "" if ok else "; is the SuperLink running, and is this the gate's address?"
    yield Finding(ok, f"{address} answers nodes (HTTP {status}){mend}")
    ahead = (datetime.now(UTC) - date).total_seconds()
    # The server's time is in whole seconds.
    ok = EARLIEST_SECONDS < ahead < LATEST_SECONDS + 1
    mend = "" if ok else "; nodes are refused: set it, for example `timedatectl set-ntp true`"
    yield Finding(ok, f"This clock is {ahead:+.0f} s from the server's{mend}")
    for path in _CLOSED:
        status, _ = _post(address, authority, path)
        if status not in (404, 405):
            yield Finding(
                False,
                f"{address}{path} is open to everybody (HTTP {status}): let the SuperLink listen "
                "on 127.0.0.1 and expose `unskew deploy gate` only",
            )
            return
    yield Finding(True, f"{address} serves nothing but nodes")


def _post(address: str, authority: Path, path: str) -> tuple[int, datetime]:
    """Status and date of the answer to an empty request without any credentials."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise UnskewError(f'--server "{address}" must look like fed.example.org:8000.')
    tls = ssl.create_default_context(cafile=str(authority))
    connection = http.client.HTTPSConnection(host, int(port), timeout=_SECONDS, context=tls)
    try:
        connection.request("POST", path, b"", {"Content-Type": "application/x-protobuf"})
        answer = connection.getresponse()
        return answer.status, parsedate_to_datetime(answer.headers["Date"])
    finally:
        connection.close()
