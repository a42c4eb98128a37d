"""What the machine of a site has: the package and what it needs, room on disks, memory."""

import platform
import shutil
from importlib.metadata import PackageNotFoundError, metadata, requires
from pathlib import Path

from packaging.requirements import Requirement

from fedproin.federation.identity import installed_version, packed_identity, running_identity
from fedproin.tools.findings import Finding, fail, ok, warn

GIB = 2**30
UNINSTALLED = "uninstalled"
SHOWN = ("python", "nvflare", "torch", "torchvision", "monai")
DISK_NEEDED, DISK_WANTED = 2 * GIB, 10 * GIB
MEMORY_NEEDED, MEMORY_WANTED = 2 * GIB, 4 * GIB
SHARED_WANTED = 64 * 2**20
MEMINFO = Path("/proc/meminfo")
CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
SHARED = Path("/dev/shm")


def check_package(config: Path | None) -> Finding:
    """The running package, against the job's folder `app/config` if there is one.

    Raises:
        UserError: the job says it in a way that cannot be read.
    """
    runs = running_identity()
    if config is None:
        return ok("package", f"fedproin {runs}; which one a job needs is known with --job")
    packed = packed_identity(config)
    if packed is None:
        advice = "ask the coordinator for the job as `fedproin pack` makes it"
        return warn("package", f"fedproin {runs}; the job was not packed and does not say which it needs", advice)
    if packed.hash != runs.hash:
        advice = "install the wheel that came with the job"
        return fail("package", f"fedproin {runs} runs here and the job was packed with {packed}", advice)
    return ok("package", f"fedproin {runs}, as the job needs it")


def check_versions() -> Finding:
    """Python and the packages that this one requires, against its own metadata."""
    try:
        needed = [Requirement(text) for text in requires("fedproin") or ()]
        python = Requirement(f"python{metadata('fedproin')['Requires-Python']}")
    except PackageNotFoundError:
        return fail("versions", "The package is not installed", "install the wheel that came with the job")
    wrong = [f"{one.name} {_version(one.name)} (needs {one.specifier})" for one in (python, *needed) if _unmet(one)]
    if wrong:
        return fail("versions", ", ".join(wrong), "pip install the wheel that came with the job, with its requirements")
    return ok("versions", ", ".join(f"{name} {_version(name)}" for name in SHOWN))


def check_disk(directory: Path) -> Finding:
    """Room for decoded pictures, models and logs."""
    free = shutil.disk_usage(directory).free
    return _enough("disk", f"{_gib(free)} free where the kit is", free, DISK_NEEDED, DISK_WANTED, "make room")


def check_memory() -> Finding:
    """Memory that a process can still get; in a container the container's limit."""
    try:
        lines = dict(line.split(":", 1) for line in MEMINFO.read_text().splitlines())
        free = int(lines["MemAvailable"].split()[0]) * 1024
        limit = CGROUP_LIMIT.read_text().strip() if CGROUP_LIMIT.is_file() else "max"
    except (OSError, KeyError, ValueError):
        return warn("memory", "This system does not tell how much memory is free", "see that 4 GiB are")
    free = free if limit == "max" else min(free, int(limit))
    return _enough("memory", f"{_gib(free)} free", free, MEMORY_NEEDED, MEMORY_WANTED, "end other programs")


def check_shared_memory() -> Finding:
    """The size of /dev/shm, which containers keep small."""
    if not SHARED.is_dir():
        return warn("shm", "There is no /dev/shm", "mount one if you run in a container")
    size = shutil.disk_usage(SHARED).total
    if size < SHARED_WANTED:
        return warn("shm", f"/dev/shm has {size / 2**20:.0f} MiB", "start the container with --shm-size=1g")
    return ok("shm", f"/dev/shm has {_gib(size)}")


def _unmet(requirement: Requirement) -> bool:
    if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
        return False
    version = _version(requirement.name)
    return version == UNINSTALLED or not requirement.specifier.contains(version, prereleases=True)


def _version(name: str) -> str:
    return platform.python_version() if name == "python" else installed_version(name)


def _enough(code: str, message: str, free: int, needed: int, wanted: int, advice: str) -> Finding:
    if free < needed:
        return fail(code, message, f"{advice}: at least {_gib(needed)} are needed")
    if free < wanted:
        return warn(code, message, f"{advice}: {_gib(wanted)} are comfortable")
    return ok(code, message)


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"
