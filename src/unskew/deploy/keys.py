"""A development certificate authority: TLS for the server and the nodes, and a key per node.

It is for trials and small closed federations. A larger one uses certificates of its own authority
under the same file names.
"""

from __future__ import annotations

import datetime
import ipaddress
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unskew.files import write_bytes
from unskew.types import UnskewError

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
except ImportError:
    raise UnskewError("Keys need an extra package: pip install 'unskew[flower]'.") from None

_CERTIFICATE_DAYS = 825
"""Longest validity of a server certificate that all clients accept."""
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_HOST_NAME = re.compile(r"(\*\.)?[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*", re.IGNORECASE)


def write_keys(folder: Path, hosts: Sequence[str], nodes: int) -> list[Path]:
    """Write the files of the CA, the server and the nodes that are missing; returns their paths."""
    if nodes < 1:
        raise UnskewError(f"--nodes {nodes} must be at least 1.")
    names = [_host(host) for host in dict.fromkeys([*_LOOPBACK, *hosts])]
    try:
        # A folder that exists keeps its permissions; secret files are always closed to others.
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        raise UnskewError(f"{folder} cannot be a folder; name another one for the keys.") from None
    written = []
    if not (folder / "ca.key").exists():
        written += _write_authority(folder)
    issuer = _Issuer(folder)
    if not (folder / "server.key").exists():
        written += issuer.issue("server", names)
    elif not set(names) <= _certificate_hosts(folder / "server.crt"):
        raise UnskewError(
            f"{folder}/server.crt is not for {', '.join(hosts)}; delete server.key and server.crt "
            "there to have them made anew."
        )
    for number in range(1, nodes + 1):
        name = f"node-{number}"
        if (folder / f"{name}.auth").exists():
            continue
        # The node's own runtime listens on loopback only.
        written += issuer.issue(name, [_host(host) for host in _LOOPBACK])
        key = _new_key()
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.OpenSSH,
            serialization.NoEncryption(),
        )
        public = key.public_key().public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        )
        written.append(_write(folder / f"{name}.auth", private, secret=True))
        written.append(_write(folder / f"{name}.auth.pub", public + b"\n"))
    return written


def _write_authority(folder: Path) -> list[Path]:
    """Make the CA's key and self-signed certificate."""
    key = _new_key()
    name = _name("unskew development CA")
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    certificate = (
        _builder(name, name, key, days=3650)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return _write_pair(folder, "ca", key, certificate, key)


class _Issuer:
    """Signs certificates with the CA of a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            secret = (folder / "ca.key").read_bytes()
            self._key: Any = serialization.load_pem_private_key(secret, None)
            self._ca = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
        except (OSError, ValueError) as error:
            raise UnskewError(f"{folder}/ca.key and ca.crt cannot be read ({error}).") from None

    def issue(self, name: str, hosts: Sequence[Any]) -> list[Path]:
        key = _new_key()
        certificate = (
            _builder(_name(name), self._ca.subject, key, days=_CERTIFICATE_DAYS)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
            .add_extension(
                x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]), critical=False
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
        )
        return _write_pair(self._folder, name, key, certificate, self._key)


def _new_key() -> Any:
    return ec.generate_private_key(ec.SECP384R1())


def _name(common: str) -> Any:
    return x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, common)])


def _host(host: str) -> Any:
    """A host name or address in the form certificates hold."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not _HOST_NAME.fullmatch(host) or len(host) > 253:
        raise UnskewError(
            f'--host "{host}" must be an address or a host name of letters, digits, hyphens and '
            "dots; names in other scripts in their xn-- form."
        )
    return x509.DNSName(host)


def _certificate_hosts(path: Path) -> set[Any]:
    """The host names and addresses of a certificate."""
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        return set(names.value)
    except (OSError, ValueError, x509.ExtensionNotFound) as error:
        raise UnskewError(f"{path} cannot be read ({error}); delete server.key too.") from None


def _builder(subject: Any, issuer: Any, key: Any, days: int) -> Any:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _write_pair(folder: Path, name: str, key: Any, certificate: Any, signer: Any) -> list[Path]:
    pem = serialization.Encoding.PEM
    private = key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    signed = certificate.sign(signer, hashes.SHA384()).public_bytes(pem)
    return [
        _write(folder / f"{name}.key", private, secret=True),
        _write(folder / f"{name}.crt", signed),
    ]


def _write(path: Path, data: bytes, secret: bool = False) -> Path:
    """Write a file; a secret one is never readable by others, not even for a moment."""
    write_bytes(path, data, mode=0o600 if secret else 0o644)
    return path
