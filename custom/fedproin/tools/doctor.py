"""`fedproin doctor`: would this site work if it joined now? One line each, with what to do; nothing leaves the site."""

import argparse
import json
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path

from fedproin.data.location import locate, read_site_file
from fedproin.errors import UserError
from fedproin.federation.trainer_process import SiteArguments
from fedproin.settings import Settings
from fedproin.tools import machine
from fedproin.tools.findings import Finding, any_failed, fail, ok, warn
from fedproin.tools.jobs import CONFIG, load_job
from fedproin.tools.kit import Kit, check_certificate, read_kit
from fedproin.tools.reach import check_ports, check_server
from fedproin.tools.site_files import check_local, promised_gpus


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the verb."""
    verb = subparsers.add_parser("doctor", help="check a site before it joins")
    verb.add_argument("kit", type=Path, metavar="KIT", help="folder that holds `startup` and `local`")
    verb.add_argument("--job", type=Path, help="the job as the coordinator packed it: its code, classes and training")
    verb.add_argument("--json", action="store_true", help="print the findings as JSON")
    verb.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the findings, each as soon as it is known; 1 if something must be mended."""
    kit = read_kit(arguments.kit)
    settings = load_job(arguments.job) if arguments.job else None
    findings = []
    for finding in examine(kit, settings, arguments.job and arguments.job / CONFIG):
        findings.append(finding)
        if not arguments.json:
            print(finding, flush=True)
    if arguments.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    return int(any_failed(findings))


def examine(kit: Kit, settings: Settings | None, config: Path | None) -> Iterator[Finding]:
    """Everything that can be known of a kit before its site joins.

    Args:
        settings: of the job, if one is given.
        config: the job's folder `app/config`, likewise.
    """
    yield from check_machine(kit, config)
    yield from check_ports(kit) if kit.kind == "server" else [check_server(kit)]
    if kit.kind == "site":
        data = list(_guarded("data", lambda: check_data(kit, settings)))
        yield from data
        if settings is None:
            yield warn("training", "Not tried: the job says which classes and settings", "name it with --job")
        elif any_failed(data):
            yield warn("training", "Not tried: the data cannot be used as it is", "mend the data first")
        yield from check_training(kit, None if any_failed(data) else settings)


def check_machine(kit: Kit, config: Path | None = None) -> list[Finding]:
    """What is known in a moment and without a network."""
    found = [
        *_guarded("package", lambda: [machine.check_package(config)]),
        machine.check_versions(),
        machine.check_disk(kit.directory),
        machine.check_memory(),
        machine.check_shared_memory(),
        *_guarded("certificate", lambda: check_certificate(kit)),
    ]
    return found if kit.kind == "admin" else found + check_local(kit)


def check_data(kit: Kit, settings: Settings | None) -> Iterator[Finding]:
    """The site's table and every image in it, in counts.

    Raises:
        UserError: the site has no data, or it cannot be read.
    """
    from fedproin.data import checks
    from fedproin.data.manifest import TableError, read_manifest

    location = locate(settings or Settings(), simulated=False, site_root=kit.directory)
    if location.source is None:
        yield ok("data", "the job draws its own pictures (a rehearsal)")
        return
    try:
        report = checks.check(read_manifest(location.source), (settings and settings.data.classes) or None)
    except TableError as error:
        report = checks.refused(error)
    if report.images:
        yield ok("data", f"{report.images} images in {report.groups} groups, {len(report.per_class)} classes")
    for problem in report.problems:
        advice = "`fedproin data check --names FILE` tells which" if problem.names else ""
        yield Finding("data", problem.level, problem.message, advice)
    yield from _too_few(kit, report.per_class)


def check_training(kit: Kit, settings: Settings | None) -> list[Finding]:
    """The GPU, and with the settings of a job two batches of training, in a process of its own: it may be killed."""
    site = None
    if settings is not None:
        location = locate(settings, simulated=False, site_root=kit.directory)
        site = SiteArguments(kit.name, settings, location, kit.directory / "fedproin")
    try:
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            return pool.submit(_in_child, *promised_gpus(kit), site).result()
    except BrokenProcessPool:
        return [fail("training", "The training process was killed", "free memory, or ask for smaller batches")]


def _in_child(gpus: int, memory: float, site: SiteArguments | None) -> list[Finding]:
    from fedproin.tools.trial import check_gpu, try_training

    return [check_gpu(gpus, memory), *([] if site is None else [try_training(site)])]


def _too_few(kit: Kit, per_class: dict[str, int]) -> Iterator[Finding]:
    site_file = read_site_file(kit.directory)
    minimum = site_file.minimum_count if site_file else 0
    few = [name for name, count in per_class.items() if 0 < count < minimum]
    if few:
        message = f"{len(few)} classes have fewer than {minimum} images, this site's minimum_count ({', '.join(few)})"
        yield fail("data", message, "take these images out of the table: so few may tell who the patients are")


def _guarded(code: str, check: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    """The findings of a check; what it refuses is one more."""
    try:
        yield from check()
    except UserError as error:
        yield fail(code, str(error), "")
