"""Refuses a second machine under the name of a site that is there.

FLARE lets it in: the two then push each other out of their connection for ever, and a job that runs does not end.
"""

import hashlib
import socket
import time

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.fl_exception import NotAuthenticated
from nvflare.apis.workspace import Workspace
from nvflare.private.defs import ClientType

PLACE = "fedproin_kit_place"
SILENT_SECONDS = 60.0  # a site says every ten that it is there, and may lose its connection to the intruder for a while


class OneKitPerSite(FLComponent):
    """In the kits of sites and server: a site says with a hash where its kit lies, and the server compares.

    A site that starts again at its place is let in at once; at another place when the first one has gone silent.
    """

    def __init__(self) -> None:
        super().__init__()
        self._places: dict[str, str] = {}

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Act before a site registers, and when the server is asked to let one in."""
        if event_type == EventType.BEFORE_CLIENT_REGISTER:
            workspace: Workspace = fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT)
            fl_ctx.set_prop(PLACE, place_of(workspace.get_root_dir()), private=False, sticky=False)
        elif event_type == EventType.CLIENT_REGISTER_RECEIVED and _is_site(fl_ctx):
            self._admit(fl_ctx)

    def _admit(self, fl_ctx: FLContext) -> None:
        peer = fl_ctx.get_peer_context()
        site, place = peer.get_identity_name(), peer.get_prop(PLACE, "")
        here = [client for client in fl_ctx.get_engine().get_clients() if client.name == site]
        alive = any(time.time() - client.last_connect_time < SILENT_SECONDS for client in here)
        if alive and self._places.get(site, place) != place:
            raise NotAuthenticated(
                f"A second {site} asks to join from another place while the first is connected: start a kit once only, "
                f"or stop the first and wait {SILENT_SECONDS:.0f} s."
            )
        self._places[site] = place


def _is_site(fl_ctx: FLContext) -> bool:
    return bool(fl_ctx.get_prop(FLContextKey.CLIENT_TYPE) == ClientType.REGULAR)


def place_of(root: str) -> str:
    """A hash that tells two kits apart which lie on different machines or in different folders."""
    return hashlib.sha256(f"{socket.gethostname()}\0{root}".encode()).hexdigest()
