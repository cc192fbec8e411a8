"""A development certificate authority: TLS for the server and the nodes, a key per node, and the
operator's key, which signs apps.

It is for trials and small closed federations. A larger federation uses certificates of its own
authority under the same file names.
"""

from __future__ import annotations

import datetime
import ipaddress
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from unskew.deploy.signing import OPERATOR_KEY, write_operator_key
from unskew.files import write_bytes
from unskew.types import UnskewError

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
except ImportError:
    raise UnskewError("Keys need an extra package: pip install 'unskew[flower]'.") from None

_CURVE = ec.SECP384R1()
"""Elliptic curve of all keys, the one that Flower requires for node keys."""
_AUTHORITY_DAYS = 3650
"""Days for which the certificate of the certificate authority (CA) is valid."""
_CERTIFICATE_DAYS = 825
"""Days for which certificates of server and nodes are valid: the most that all clients accept."""
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
"""Name and addresses of the local machine, valid in the certificates of server and nodes."""
_HOST_NAME = re.compile(r"(\*\.)?[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*", re.IGNORECASE)
"""Pattern of a host name, possibly with the wildcard ``*.`` in front."""


def write_keys(folder: Path, hosts: Sequence[str], nodes: int) -> list[Path]:
    """Write missing keys and certificates of CA, server, operator and nodes; returns the paths of
    the new files."""
    names = [_host(host) for host in dict.fromkeys([*_LOOPBACK, *hosts])]
    try:
        # A folder that exists keeps its permissions; secret files are always closed to others.
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        raise UnskewError(f"{folder} cannot be a folder; name another one for the keys.") from None
    written = []
    if not (folder / "ca.key").exists():
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        authority = x509.BasicConstraints(ca=True, path_length=0)
        written += _write_certificate(folder, "ca", _AUTHORITY_DAYS, authority, usage)
    if not (folder / "server.key").exists():
        written += _issue(folder, "server", names)
    elif not set(names) <= set(_alternative_names(folder / "server.crt")):
        raise UnskewError(
            f"{folder}/server.crt is not for {', '.join(hosts)}; delete server.key and server.crt "
            "there to have them made anew."
        )
    if not (folder / OPERATOR_KEY).exists():
        written += write_operator_key(folder)
    for name in (f"node-{number}" for number in range(1, nodes + 1)):
        if not (folder / f"{name}.key").exists():
            # The node's own runtime listens on loopback only.
            written += _issue(folder, name, [_host(host) for host in _LOOPBACK])
        if (folder / f"{name}.auth").exists():
            continue
        key = ec.generate_private_key(_CURVE)
        encoding, form = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        public = key.public_key().public_bytes(encoding, form) + b"\n"
        private = _private_bytes(key, serialization.PrivateFormat.OpenSSH)
        written += [_write(folder / f"{name}.auth", private, secret=True)]
        written += [_write(folder / f"{name}.auth.pub", public)]
    return written


def _issue(folder: Path, name: str, hosts: Sequence[Any]) -> list[Path]:
    """Write a new key and a TLS certificate for ``hosts``, signed by the CA of the folder."""
    purpose = x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH])
    nothing_else = x509.BasicConstraints(ca=False, path_length=None)
    names = x509.SubjectAlternativeName(hosts)
    return _write_certificate(folder, name, _CERTIFICATE_DAYS, nothing_else, names, purpose)


def _write_certificate(folder: Path, name: str, days: int, *extensions: Any) -> list[Path]:
    """Write a new key and its certificate, signed by the folder's CA (for the CA: self-signed)."""
    key: Any = ec.generate_private_key(_CURVE)
    subject = x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, f"unskew {name}")])
    signer, issuer = (key, subject) if name == "ca" else _read_authority(folder)
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=days))
    )
    identifiers = (
        x509.SubjectKeyIdentifier.from_public_key(key.public_key()),
        x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()),
    )
    for extension in (*extensions, *identifiers):
        critical = isinstance(extension, x509.BasicConstraints | x509.KeyUsage)
        builder = builder.add_extension(extension, critical=critical)
    signed = builder.sign(signer, hashes.SHA384()).public_bytes(serialization.Encoding.PEM)
    private = _private_bytes(key, serialization.PrivateFormat.PKCS8)
    return [
        _write(folder / f"{name}.key", private, secret=True),
        _write(folder / f"{name}.crt", signed),
    ]


def _read_authority(folder: Path) -> tuple[Any, Any]:
    """Read the private key and the subject name of the folder's certificate authority."""
    try:
        key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
        return key, x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes()).subject
    except (OSError, ValueError) as error:
        raise UnskewError(f"{folder}/ca.key and ca.crt cannot be read ({error}).") from None


def _alternative_names(path: Path) -> Any:
    """The host names and addresses that a certificate file is valid for."""
    try:
        extensions = x509.load_pem_x509_certificate(path.read_bytes()).extensions
        return extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (OSError, ValueError, x509.ExtensionNotFound) as error:
        raise UnskewError(f"{path} cannot be read ({error}); delete server.key too.") from None


def _host(host: str) -> Any:
    """Convert a host name or IP address to the type that certificates contain."""
    with suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(host))
    if not _HOST_NAME.fullmatch(host) or len(host) > 253:
        raise UnskewError(
            f'--host "{host}" must be an address or a host name of letters, digits, hyphens and '
            "dots; names in other scripts in their xn-- form."
        )
    return x509.DNSName(host)


def _private_bytes(key: Any, form: Any) -> bytes:
    plain = serialization.NoEncryption()
    found: bytes = key.private_bytes(serialization.Encoding.PEM, form, plain)
    return found


def _write(path: Path, data: bytes, secret: bool = False) -> Path:
    """Write a file and return its path; a secret file is readable by its owner only."""
    write_bytes(path, data, mode=0o600 if secret else 0o644)
    return path
