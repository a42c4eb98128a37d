"""Whether the server answers, and whether it and this kit's certificate accept each other: a handshake, no message."""

import errno
import socket
import ssl
from dataclasses import replace

from fedproin.tools.findings import Finding, fail, ok
from fedproin.tools.kit import Kit

CONNECT_SECONDS = 5.0
VERDICT_SECONDS = 1.0  # in TLS 1.3 a server refuses a certificate only after the client's handshake is over
EXPIRED, NOT_YET_VALID, OTHER_NAME = 10, 9, (62, 64)  # OpenSSL's X509_V_ERR_*; a name, an address
COORDINATOR = "ask the coordinator"


def check_server(kit: Kit) -> Finding:
    """A connection to the kit's server with the kit's certificate."""
    where = f"{kit.host}:{kit.port}"
    try:
        with socket.create_connection((kit.host, kit.port), CONNECT_SECONDS) as plain:
            return _shake_hands(kit, plain, where)
    except socket.gaierror:
        return fail("server", f"The name {kit.host} is not known here", "ask your network's administrators to add it")
    except TimeoutError:
        return fail("server", f"No answer from {where}", f"let your firewall pass TCP port {kit.port} outwards")
    except ConnectionRefusedError:
        return fail("server", f"Nothing listens at {where}", f"{COORDINATOR} whether the server runs")
    except OSError as error:
        return fail("server", f"No way to {where} ({error.strerror})", "ask your network's administrators")


def check_ports(kit: Kit) -> list[Finding]:
    """Whether a server can listen; or does already."""
    return [_check_port(kit, port) for port in sorted({kit.port, kit.admin_port})]


def _check_port(kit: Kit, port: int) -> Finding:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("", port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE and check_server(replace(kit, port=port)).status == "ok":
                return ok("port", f"This server is running and listens at port {port}")
            advice = "stop what uses it, or have the kit made with another port"
            return fail("port", f"The server cannot listen at port {port} ({error.strerror})", advice)
    return ok("port", f"{port} is free for the server")


def _shake_hands(kit: Kit, plain: socket.socket, where: str) -> Finding:
    try:
        with _context(kit).wrap_socket(plain, server_hostname=kit.host) as secure:
            secure.settimeout(VERDICT_SECONDS)
            accepted = _hears_no_refusal(secure)
            version = secure.version()
    except ssl.SSLCertVerificationError as error:
        return _untrusted(error.verify_code, kit, where)
    except ssl.SSLError as error:
        if "ALERT" not in (error.reason or ""):
            return fail("server", f"What listens at {where} speaks no TLS", f"{COORDINATOR} for the right port")
        accepted = False
    except ConnectionResetError:
        accepted = False
    if accepted:
        return ok("server", f"{where} accepts this certificate ({version})")
    return fail("server", f"{where} refuses this certificate", f"{COORDINATOR} whether this kit is of its federation")


def _context(kit: Kit) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = kit.scheme == "grpc"  # as FLARE's drivers do
    context.load_verify_locations(kit.root)
    context.load_cert_chain(kit.certificate, kit.key)
    context.set_alpn_protocols(["h2"])
    return context


def _hears_no_refusal(secure: ssl.SSLSocket) -> bool:
    """A gRPC server speaks first, others wait; who refuses sends an alert or hangs up."""
    try:
        return bool(secure.recv(1))
    except TimeoutError:
        return True


def _untrusted(code: int, kit: Kit, where: str) -> Finding:
    if code == EXPIRED:
        return fail("server", f"The certificate of {where} has expired", f"{COORDINATOR} to renew it")
    if code == NOT_YET_VALID:
        return fail("server", f"The certificate of {where} is not valid yet", "set this machine's clock")
    if code in OTHER_NAME:
        advice = f"{COORDINATOR} for a server certificate with this name"
        return fail("server", f"The certificate of {where} is for another name than {kit.host}", advice)
    advice = f"{COORDINATOR} whether this kit is of its federation, and your network's administrators about TLS proxies"
    return fail("server", f"The certificate of {where} is of another root than this kit's rootCA.pem", advice)
