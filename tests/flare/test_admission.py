"""Who may join under the name of a site that the server has already."""

import time
from types import SimpleNamespace

import pytest
from nvflare.apis.client import Client
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey, ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.fl_exception import NotAuthenticated
from nvflare.private.defs import ClientType

from fedproin.flare.admission import SILENT_SECONDS, OneKitPerSite, place_of


@pytest.fixture
def register():
    """Ask a server to let a site of a kind in from a folder, while it has had word from these, so many seconds ago."""
    guard = OneKitPerSite()

    def ask(site, root, kind=ClientType.REGULAR, **heard_of):
        clients = [Client(name.replace("_", "-"), "token") for name in heard_of]
        for client, seconds in zip(clients, heard_of.values(), strict=True):
            client.last_connect_time = time.time() - seconds
        guard.handle_event(EventType.CLIENT_REGISTER_RECEIVED, context(site, said_by(root), kind, clients))

    return ask


def said_by(root):
    """What a site with a kit in that folder tells the server."""
    fl_ctx = FLContext()
    workspace = SimpleNamespace(get_root_dir=lambda: root)
    fl_ctx.set_prop(FLContextKey.WORKSPACE_OBJECT, workspace, private=True)
    OneKitPerSite().handle_event(EventType.BEFORE_CLIENT_REGISTER, fl_ctx)
    return fl_ctx.get_all_public_props()


def context(site, said, kind, clients):
    peer, fl_ctx = FLContext(), FLContext()
    peer.set_public_props({**said, ReservedKey.IDENTITY_NAME: site})
    fl_ctx.set_peer_context(peer)
    fl_ctx.set_prop(FLContextKey.CLIENT_TYPE, kind)
    engine = SimpleNamespace(get_clients=lambda: clients)
    fl_ctx.set_prop(ReservedKey.ENGINE, engine, private=True)
    return fl_ctx


def test_a_second_place_is_refused_while_the_first_is_heard_of(register):
    register("site-1", "/kit")
    with pytest.raises(NotAuthenticated, match=r"^A second site-1 asks to join from another place .* wait 60 s\.$"):
        register("site-1", "/copy", site_1=SILENT_SECONDS - 5)
    register("site-1", "/kit", site_1=1)  # the refused one has not taken its place


def test_a_site_that_starts_again_is_let_in_at_once(register):
    register("site-1", "/kit")
    register("site-1", "/kit", site_1=0)


def test_another_place_is_let_in_when_the_first_is_silent_or_gone(register):
    register("site-1", "/kit")
    register("site-1", "/copy", site_1=SILENT_SECONDS + 5)
    register("site-1", "/kit")


def test_other_sites_and_people_are_not_its_matter(register):
    register("site-1", "/kit")
    register("site-2", "/copy", site_1=1)
    register("site-1", "/copy", kind=ClientType.ADMIN, site_1=1)


def test_where_a_kit_lies_is_not_told():
    assert "/hospital" not in place_of("/hospital/kit")
    assert place_of("/a") != place_of("/b")
