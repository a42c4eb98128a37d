"""What `local/` of a startup kit should hold: FLARE's own defaults, as this kit brings them, with the holes closed."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedproin.data.location import SITE_FILE
from fedproin.errors import UserError
from fedproin.tools.findings import Finding, fail, ok, warn
from fedproin.tools.kit import Kit

Json = dict[str, Any]

RESOURCES, AUTHORIZATION, PRIVACY = "resources.json", "authorization.json", "privacy.json"
PACKAGE_CLASSES = "fedproin."  # FLARE reads the dot as: every class below this package
ADMISSION = {"id": "one_kit_per_site", "path": "fedproin.flare.admission.OneKitPerSite", "args": {}}
OWN_ORG = "o:site"
FLARE_TMP = "/tmp/nvflare"
SCOPE = "hospital"
MEND = "fedproin site init KIT"


@dataclass(frozen=True)
class Choices:
    """What a site decides; None leaves what the coordinator put into the kit.

    Attributes:
        data: the site's table, folder or ZIP.
        gpus, gpu_memory: number of GPUs for training, and GiB of each.
        minimum_count: fewest images of a class that the site has.
        store: a server's directory for jobs, snapshots and received logs.
        allow_byoc: run code that comes with a job.
    """

    data: Path | None = None
    gpus: int | None = None
    gpu_memory: float | None = None
    minimum_count: int | None = None
    store: Path | None = None
    allow_byoc: bool = False


def site_files(kit: Kit, choices: Choices) -> dict[str, Json]:
    """Name and content of each file for `local/`.

    Raises:
        UserError: the kit's own defaults are missing or of another FLARE.
    """
    try:
        files = {
            RESOURCES: _server_resources(kit, choices) if kit.kind == "server" else _site_resources(kit, choices),
            AUTHORIZATION: _authorization(kit, choices),
        }
    except (OSError, ValueError, KeyError, TypeError, StopIteration):
        raise UserError("The kit's local/*.json.default are not those of FLARE 2.9: have the kit made again.") from None
    if kit.kind == "site":
        files[PRIVACY] = {"scopes": [{"name": SCOPE}], "default_scope": SCOPE}
    if choices.data is not None:
        minimum = {} if choices.minimum_count is None else {"minimum_count": choices.minimum_count}
        files[SITE_FILE] = {"data": str(choices.data), **minimum}
    return files


def promised_gpus(kit: Kit) -> tuple[int, float]:
    """The number of GPUs that the site offers to FLARE, and the GiB of each; none without a resources.json."""
    try:
        manager = _component(_read(kit, RESOURCES), "GPUResourceManager")["args"]
        return int(manager["num_of_gpus"]), float(manager["mem_per_gpu_in_GiB"])
    except (OSError, ValueError, KeyError, TypeError, StopIteration):
        return 0, 0.0


def check_local(kit: Kit) -> list[Finding]:
    """Whether the files in force let a job run and let nothing out that should stay."""
    try:
        resources, authorization = (_read(kit, name) for name in (RESOURCES, AUTHORIZATION))
        found = [*_resource_problems(kit, resources), *_authorization_problems(authorization)]
    except FileNotFoundError:
        return [fail("local", "FLARE's defaults are in force, which let logs out and refuse this package", MEND)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return [fail("local", "resources.json or authorization.json in `local` cannot be read", f"{MEND} --yes")]
    return found or [ok("local", "resources.json and authorization.json close what FLARE leaves open")]


def _resource_problems(kit: Kit, resources: Json) -> Iterator[Finding]:
    if PACKAGE_CLASSES not in resources["class_allow_list"]:
        yield fail("local", "resources.json does not allow the classes of this package", f"{MEND} --yes")
    if kit.kind == "site" and resources["allow_log_streaming"]:
        yield warn("local", "resources.json lets the logs of this site go to the server", f"{MEND} --yes")
    if kit.kind == "server" and FLARE_TMP in json.dumps(resources):
        yield warn("local", f"Jobs and results lie below {FLARE_TMP}, open to all users", f"{MEND} --yes")


def _authorization_problems(authorization: Json) -> Iterator[Finding]:
    roles = authorization["permissions"].values()
    if any(rights == "any" or (isinstance(rights, dict) and rights.get("byoc", "none") != "none") for rights in roles):
        yield warn("local", "authorization.json lets jobs bring their own code", f"{MEND} --yes without --allow-byoc")


def _site_resources(kit: Kit, choices: Choices) -> Json:
    values = _resources(kit)
    values["allow_log_streaming"] = False
    manager = _component(values, "GPUResourceManager")["args"]
    if choices.gpus is not None:
        manager["num_of_gpus"] = choices.gpus
    if choices.gpu_memory is not None:
        manager["mem_per_gpu_in_GiB"] = choices.gpu_memory
    return values


def _server_resources(kit: Kit, choices: Choices) -> Json:
    values, store = _resources(kit), choices.store
    if store is not None:
        values["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = str(store / "snapshots")
        _component(values, "SimpleJobDefManager")["args"]["uri_root"] = str(store / "jobs")
        _component(values, "JobLogReceiver")["args"]["dest_dir"] = str(store / "logs")
    return values


def _resources(kit: Kit) -> Json:
    values = _read(kit, f"{RESOURCES}.default")
    values["class_allow_list"] = list(dict.fromkeys([*values["class_allow_list"], PACKAGE_CLASSES]))
    values["components"].append(ADMISSION)
    return values


def _authorization(kit: Kit, choices: Choices) -> Json:
    """A role that may do anything is spelled out, so that something can be taken from it."""
    values = _read(kit, f"{AUTHORIZATION}.default")
    roles: Json = values["permissions"]
    rights = list(dict.fromkeys(right for role in roles.values() if isinstance(role, dict) for right in role))
    for name, role in roles.items():
        roles[name] = role if isinstance(role, dict) else dict.fromkeys(rights, role)
        if roles[name].get("shell_commands", "none") != "none":
            roles[name]["shell_commands"] = OWN_ORG
        if "byoc" in roles[name] and not choices.allow_byoc:
            roles[name]["byoc"] = "none"
    return values


def _component(values: Json, name: str) -> Json:
    found: Json = next(one for one in values["components"] if one["path"].endswith(f".{name}"))
    return found


def _read(kit: Kit, name: str) -> Json:
    values: Json = json.loads((kit.local / name).read_bytes())
    return values
