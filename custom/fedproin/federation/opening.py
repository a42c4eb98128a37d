"""Opening a run: the server with its record, and in a simulation the table that is dealt over the sites."""

import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from fedproin.data.location import Location
from fedproin.data.site_images import describe, require_classes, table_classes
from fedproin.federation.identity import package_identity
from fedproin.federation.messages import site_order
from fedproin.federation.participation import require_sites
from fedproin.federation.records import RunRecord
from fedproin.federation.results import versions
from fedproin.federation.server import Server
from fedproin.methods import create_method
from fedproin.settings import Settings


def open_server(
    settings: Settings,
    sites: Sequence[str],
    location: Location | None,
    directory: Path,
    log: Callable[[str], None],
) -> Server:
    """The server of a run.

    Args:
        location: of a table that all sites share, which the server reads for its classes and deals, so that it fails
            where a site would; none at hospitals, where the server has no data.
        directory: where checkpoint, models, results and TensorBoard files go; it outlives the job.
        log: takes one line at a time.

    Raises:
        UserError: data, settings or sites do not fit, or an earlier run of this name cannot go on.
    """
    sites = sorted(sites, key=site_order)
    require_sites(settings.federation, sites, create_method(settings).trains_on)
    partition = ""
    if location is None:
        require_classes(settings)
    else:
        settings = settings.with_classes(table_classes(settings, location))
        partition = describe(settings, location, sites)
    fresh = new_record(settings, sites, partition, synthetic=location is not None and location.synthetic)
    deadline = None if location is not None and location.simulated else settings.federation.deadline_seconds
    return Server(settings, directory, fresh, deadline, log)


def new_record(settings: Settings, sites: Sequence[str], partition: str, synthetic: bool) -> RunRecord:
    """The record of a run that has not begun, under a run id of its own."""
    options = create_method(settings).options
    return RunRecord(
        run=settings.run,
        run_id=uuid.uuid4().hex,
        method=options.name,
        seed=settings.seed,
        settings_digest=settings.digest(),
        settings=asdict(settings) | {"method": asdict(options)},
        versions=versions() | {"fedproin": package_identity()},
        classes=list(settings.data.classes),
        site_names=list(sites),
        data="synthetic" if synthetic else "table",
        partition=partition,
    )
