"""Startup kits as FLARE makes them, once a session, and certificates as they should not be."""

import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

PROJECT = """
api_version: 3
name: {name}
description: for tests
participants:
  - {{name: localhost, type: server, org: coordinator, fed_learn_port: {ports[0]}, admin_port: {ports[1]}}}
  - {{name: site-1, type: client, org: hospital1}}
  - {{name: lead@coordinator.org, type: admin, org: coordinator, role: lead}}
builders:
  - {{path: nvflare.lighter.impl.workspace.WorkspaceBuilder, args: {{template_file: [master_template.yml]}}}}
  - {{path: nvflare.lighter.impl.static_file.StaticFileBuilder, args: {{config_folder: config, scheme: grpc}}}}
  - path: nvflare.lighter.impl.cert.CertBuilder
  - path: nvflare.lighter.impl.signature.SignatureBuilder
"""


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@pytest.fixture(scope="session")
def provisioned(tmp_path_factory):
    """Folders of kits, by project: `mine` and `other`."""
    root = tmp_path_factory.mktemp("provisioned")
    for name in ("mine", "other"):
        (root / f"{name}.yml").write_text(PROJECT.format(name=name, ports=free_ports(2)))
        subprocess.run(
            [Path(sys.executable).with_name("nvflare"), "provision", "-p", f"{name}.yml", "-w", "ws", "--force"],
            cwd=root,
            env=os.environ | {"HOME": str(root)},
            check=True,
            capture_output=True,
        )
    return {name: root / "ws" / name / "prod_00" for name in ("mine", "other")}


@pytest.fixture
def make_kit(provisioned, tmp_path):
    """A copy of a kit, to be spoilt: `make_kit("site-1")`."""

    def make(name="site-1", project="mine") -> Path:
        return Path(shutil.copytree(provisioned[project] / name, tmp_path / "kits" / name))

    return make


@pytest.fixture
def write_certificate():
    """Give a kit a new root and a certificate of it, which begin and end so many days from now."""
    return _write_certificate


def _write_certificate(kit: Path, begin=-10, end=355, root_name="mine", name="site-1") -> None:
    now = datetime.now(UTC)
    root_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))

    def issue(subject, public_key, ca):
        names = [x509.NameAttribute(NameOID.COMMON_NAME, subject), x509.NameAttribute(NameOID.ORGANIZATION_NAME, "h1")]
        builder = x509.CertificateBuilder().subject_name(x509.Name(names)).public_key(public_key)
        issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, root_name), names[1]])
        return (
            builder.issuer_name(issuer)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + timedelta(days=begin))
            .not_valid_after(now + timedelta(days=end, minutes=1))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(subject)]), critical=False)
            .sign(root_key, hashes.SHA256())
            .public_bytes(serialization.Encoding.PEM)
        )

    startup, stem = kit / "startup", "server" if (kit / "startup" / "server.key").exists() else "client"
    (startup / "rootCA.pem").write_bytes(issue(root_name, root_key.public_key(), True))
    (startup / f"{stem}.crt").write_bytes(issue(name, key.public_key(), False))
    private = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (startup / f"{stem}.key").write_bytes(key.private_bytes(serialization.Encoding.PEM, *private))


@pytest.fixture
def serve():
    """Start a TLS server as a kit's server would be: `serve(kit)` listens at the kit's port until the test ends."""
    servers = []

    def start(kit: Path, port: int | None = None, tls: bool = True, speaks: bool = True) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(kit / "startup" / "server.crt", kit / "startup" / "server.key")
        context.load_verify_locations(kit / "startup" / "rootCA.pem")
        context.verify_mode = ssl.CERT_REQUIRED
        target = json.loads((kit / "startup" / "fed_server.json").read_text())["servers"][0]["service"]["target"]
        listener = socket.create_server(("127.0.0.1", port or int(target.rpartition(":")[2])))
        thread = threading.Thread(target=_answer, args=(listener, context if tls else None, speaks), daemon=True)
        thread.start()
        servers.append((listener, thread))

    yield start
    for listener, thread in servers:
        listener.shutdown(socket.SHUT_RDWR)  # wakes the thread, which would keep the port
        thread.join()
        listener.close()


def _answer(listener, context, speaks):
    while True:
        try:
            plain, _ = listener.accept()
        except OSError:
            return
        with plain:
            plain.settimeout(5)
            try:
                if context is None:
                    plain.sendall(b"220 no TLS here\r\n")
                    plain.recv(1000)
                    continue
                with context.wrap_socket(plain, server_side=True) as secure:
                    if speaks:
                        secure.sendall(b"\0")
                    secure.recv(1)
            except OSError:
                continue
