"""The operator's signature of a Flower app, without which a node does not run the app.

Flower's nodes can demand a signature (``flower-supernode --trusted-entities``), but Flower's server
attaches signatures only to apps from Flower's own hub. So the operator signs an app here, the gate
attaches the signature to what nodes download, and the node's own Flower checks it. The operator's
key stays on the operator's machine: neither gate nor server can sign an app of their own.
"""

from __future__ import annotations

import base64
import hashlib
import json
import time
from pathlib import Path
from typing import Any

from unskew.files import read_json, write_bytes, write_json
from unskew.types import UnskewError

try:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ed25519
except ImportError:
    raise UnskewError("Signatures need an extra package: pip install 'unskew[flower]'.") from None

FORMAT, VERSION = "unskew-signature", 1
"""Format name and version of signature files."""
OPERATOR_KEY, TRUSTED = "operator.key", "trusted.yaml"
"""Names of the files with the operator's private key and, for nodes, with the public key."""


def write_operator_key(folder: Path) -> list[Path]:
    """Write a new operator's key, and the file of public keys that nodes trust."""
    key = ed25519.Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    name, public = _public(key)
    # JSON is also YAML, which Flower reads.
    write_bytes(folder / TRUSTED, (json.dumps({name: public}) + "\n").encode(), mode=0o644)
    write_bytes(folder / OPERATOR_KEY, private, mode=0o600)
    return [folder / OPERATOR_KEY, folder / TRUSTED]


def sign_app(app: Path, key: Path, signatures: Path) -> str:
    """Sign the app in the folder ``app``, as ``flwr run`` will send it; returns its SHA-256."""
    from flwr.cli.build import build_fab_from_disk

    if not (app / "pyproject.toml").exists():
        raise UnskewError(f"{app} is no Flower app; write one with `unskew deploy app`.")
    private = _read_key(key)
    try:
        digest = hashlib.sha256(build_fab_from_disk(app))
    except Exception as error:  # whatever Flower finds wrong with an app
        raise UnskewError(f"Flower cannot pack {app} ({error}).") from None
    now = int(time.time())
    signature = private.sign(_message(now, digest.digest()))
    values = {
        "app": digest.hexdigest(),
        "key": _public(private)[0],
        "signed_at": now,
        "signature": base64.urlsafe_b64encode(signature).decode(),
    }
    path = signatures / f"{digest.hexdigest()}.json"
    write_json(path, {"format": FORMAT, "version": VERSION, **values})
    return digest.hexdigest()


def verifications(signatures: Path, app: str) -> dict[str, str]:
    """What Flower sends to nodes beside an app with the SHA-256 ``app``: the operator's signature,
    or nothing if the folder ``signatures`` has none."""
    path = signatures / f"{app}.json"
    if not path.exists():
        return {}
    found = read_json(path, FORMAT, VERSION)
    signed = {name: found[name] for name in ("signed_at", "signature")}
    # Flower's nodes also ask for a hub's licence, which apps from elsewhere do not have.
    return {found["key"]: json.dumps(signed), "valid_license": "Valid"}


def is_signed(signature: Path, trusted: dict[str, str]) -> bool:
    """Whether a signature file is by one of the keys in ``trusted`` (as in ``trusted.yaml``)."""
    found = read_json(signature, FORMAT, VERSION)
    try:
        public: Any = serialization.load_ssh_public_key(trusted[found["key"]].encode())
        message = _message(found["signed_at"], bytes.fromhex(found["app"]))
        public.verify(base64.urlsafe_b64decode(found["signature"]), message)
    except Exception:  # an unknown key, no key at all, or another signature
        return False
    return True


def _message(signed_at: int, digest: bytes) -> bytes:
    """The bytes that Flower's nodes take a signature to be of."""
    return signed_at.to_bytes(8, "big") + digest


def _public(key: ed25519.Ed25519PrivateKey) -> tuple[str, str]:
    """The id and the text of a public key."""
    text = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    return f"fpk_{hashlib.sha256(text).hexdigest()[:16]}", text.decode()


def _read_key(path: Path) -> ed25519.Ed25519PrivateKey:
    try:
        key = serialization.load_ssh_private_key(path.read_bytes(), None)
    except (OSError, ValueError) as error:
        raise UnskewError(
            f"{path} cannot be read ({error}); `unskew deploy keys` makes an operator's key."
        ) from None
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise UnskewError(f"{path} is not an Ed25519 key, which Flower needs for signatures.")
    return key
