"""A FLARE startup kit: who it is for, which server it calls, and whether its certificate is any good.

It makes no difference whether `nvflare provision` wrote it or `nvflare package` assembled it at the site.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import NameOID

from fedproin.errors import UserError
from fedproin.tools.findings import Finding, fail, ok, warn

Kind = Literal["server", "site", "admin"]

KINDS: dict[str, Kind] = {"fed_server.json": "server", "fed_client.json": "site", "fed_admin.json": "admin"}
WARN_DAYS = 30
RENEW = "ask the coordinator for a new one (provisioning/README.md, renewing a certificate)"
UNPACK = "unpack the kit that the coordinator made for this machine once more"
OWNER = "The kit cannot be read: run this as the user to whom it belongs."


@dataclass(frozen=True)
class Kit:
    """What a startup kit says of itself.

    Attributes:
        name: of the participant; a server has the name of its host.
        project: the federation's.
        host, port: of the server, for this kind of kit: admins have a port of their own.
        admin_port: a server's port for admins, which may be the same.
        scheme: of FLARE's messages: grpc, tcp or http.
        certificate, key, root: PEM files.
    """

    directory: Path
    kind: Kind
    name: str
    project: str
    host: str
    port: int
    admin_port: int
    scheme: str
    certificate: Path
    key: Path
    root: Path

    @property
    def local(self) -> Path:
        """Where the site's own configuration lies."""
        return self.directory / "local"


@dataclass(frozen=True)
class Certificate:
    """Facts about a kit's certificate; `project` is that of the root certificate.

    Attributes:
        not_before, not_after: when both it and its root are valid.
        signed_by_root: by the rootCA.pem in the same kit.
        matches_key: the private key beside it is its own.
        key_is_private: nobody but the owner of the key's file can read it.
    """

    subject: str
    org: str
    project: str
    not_before: datetime
    not_after: datetime
    signed_by_root: bool
    matches_key: bool
    key_is_private: bool

    def days_left(self, now: datetime) -> int:
        """Whole days until it expires; negative when it has."""
        return (self.not_after - now).days


def read_kit(directory: Path) -> Kit:
    """The startup kit in a directory.

    Raises:
        UserError: there is none, or it is damaged.
    """
    directory = directory.absolute()
    try:
        found = [name for name in KINDS if (directory / "startup" / name).is_file()]
    except PermissionError:
        raise UserError(OWNER) from None
    if len(found) != 1:
        raise UserError(
            "This is no FLARE startup kit: name the folder that holds `startup` and `local`, "
            "such as workspace/PROJECT/prod_00/NAME."
        )
    try:
        values = json.loads((directory / "startup" / found[0]).read_bytes())
        return _admin(directory, values) if KINDS[found[0]] == "admin" else _member(directory, values, KINDS[found[0]])
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        raise UserError(f"The kit's startup/{found[0]} is damaged: {UNPACK}.") from None


def read_certificate(kit: Kit) -> Certificate:
    """The kit's certificate.

    Raises:
        UserError: certificate, key or root are missing or damaged.
    """
    try:
        certificate, root = (x509.load_pem_x509_certificate(path.read_bytes()) for path in (kit.certificate, kit.root))
        key = load_pem_private_key(kit.key.read_bytes(), password=None)
        mode = kit.key.stat().st_mode
    except PermissionError:
        raise UserError(OWNER) from None
    except (OSError, ValueError, TypeError):
        raise UserError(f"The kit's certificate, key or rootCA.pem cannot be read: {UNPACK}.") from None
    return Certificate(
        _text(certificate.subject, NameOID.COMMON_NAME),
        _text(certificate.subject, NameOID.ORGANIZATION_NAME),
        _text(root.subject, NameOID.COMMON_NAME),
        max(certificate.not_valid_before_utc, root.not_valid_before_utc),
        min(certificate.not_valid_after_utc, root.not_valid_after_utc),
        _signed_by(certificate, root),
        certificate.public_key() == key.public_key(),
        not mode & 0o077,
    )


def check_certificate(kit: Kit) -> list[Finding]:
    """Everything that is wrong with the kit's certificate, or that it is valid.

    Raises:
        UserError: certificate, key or root are missing or damaged.
    """
    certificate, now = read_certificate(kit), datetime.now(UTC)
    days, until = certificate.days_left(now), f"{certificate.not_after:%Y-%m-%d}"
    found = list(_problems(kit, certificate, now))
    if not found and days < WARN_DAYS:
        found.append(warn("certificate", f"The certificate expires in {days} days, on {until}", RENEW))
    return found or [ok("certificate", f"{certificate.subject} of {certificate.org}, {days} days left, until {until}")]


def require_sound(kit: Kit) -> None:
    """Refuse a kit that cannot join.

    Raises:
        UserError: the first thing that is wrong with its certificate.
    """
    for finding in check_certificate(kit):
        if finding.status == "fail":
            raise UserError(f"{finding.message}: {finding.advice}.")


def _problems(kit: Kit, certificate: Certificate, now: datetime) -> Iterator[Finding]:
    if certificate.project != kit.project:
        there = f"The kit is of the project {kit.project} and its rootCA.pem of the project {certificate.project}"
        yield fail("project", there, UNPACK)
    if not certificate.signed_by_root:
        yield fail("root", "The certificate was not signed by the rootCA.pem of this kit", UNPACK)
    if not certificate.matches_key:
        yield fail("key", "The private key does not belong to the certificate", UNPACK)
    if not certificate.key_is_private:
        told = f"chmod 600 startup/{kit.key.name}, and ask for a new certificate if others have been on this machine"
        yield fail("key_rights", "Others can read the private key", told)
    if certificate.not_after <= now:
        yield fail("certificate", f"The certificate expired on {certificate.not_after:%Y-%m-%d}", RENEW)
    elif certificate.not_before > now:
        begin = f"The certificate is valid only from {certificate.not_before:%Y-%m-%d %H:%M} UTC"
        yield fail("certificate", begin, "set this machine's clock")


def _member(directory: Path, values: Any, kind: Kind) -> Kit:
    server, own = values["servers"][0], values["servers"][0] if kind == "server" else values["client"]
    host, _, port = server["service"]["target"].rpartition(":")
    return Kit(
        directory,
        kind,
        server["admin_server"] if kind == "server" else own["fqsn"],
        server["name"],
        host,
        int(port),
        int(server.get("admin_port", port)),
        server["service"]["scheme"],
        *(directory / "startup" / own[name] for name in ("ssl_cert", "ssl_private_key", "ssl_root_cert")),
    )


def _admin(directory: Path, values: Any) -> Kit:
    own = values["admin"]
    return Kit(
        directory,
        "admin",
        own["username"],
        own["project_name"],
        own["host"],
        int(own["port"]),
        int(own["port"]),
        own["scheme"],
        *(directory / "startup" / own[name] for name in ("client_cert", "client_key", "ca_cert")),
    )


def _text(name: x509.Name, what: x509.ObjectIdentifier) -> str:
    found = name.get_attributes_for_oid(what)
    return str(found[0].value) if found else ""


def _signed_by(certificate: x509.Certificate, root: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(root)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True
