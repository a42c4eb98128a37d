"""A whole federation in one process, without FLARE, for sweeps and tests. It ends with the simulator's bits."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fedproin.data.location import locate
from fedproin.federation.messages import Task
from fedproin.federation.opening import open_server
from fedproin.federation.records import RunRecord
from fedproin.federation.site import Site
from fedproin.settings import Settings
from fedproin.training.device import prepare_device


def run_local(settings: Settings, sites: int, directory: Path, log: Callable[[str], None]) -> RunRecord:
    """Run a job with `site-1` to `site-N`, one after another; results go to `directory`."""
    location = locate(settings, simulated=True, site_root=directory)
    names = [f"site-{number}" for number in range(1, sites + 1)]
    prepare_device(settings.training)
    server = open_server(settings, names, location, directory / "fedproin", log)
    members: dict[str, Site] = {}

    def exchange(task: Task, targets: Sequence[str]) -> Mapping[str, str]:
        for name in targets:
            if name not in members:
                members[name] = Site(name, settings, location, directory / name / "fedproin")
            server.accept(name, members[name].run(task))
        return {}

    return server.run(exchange)
