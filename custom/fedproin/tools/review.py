"""REVIEW.md of a packed job: one page from which a hospital decides."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from fedproin.federation.identity import Identity
from fedproin.federation.results import versions
from fedproin.settings import Settings

REVIEW = "REVIEW.md"

PAGE = """\
# Job `{job}`, for review

Written by `fedproin pack`. The same job and code, packed again, give the same bytes.

## What it does

It trains one classifier of images for all sites.

- method `{method}`, encoder `{backbone}`, images of {size} x {size} pixels
- {classes}
- rounds: {rounds}; in each, {share:.0%} of the sites train {epochs} epochs on their own training images
- at the end every site scores the model on its own test images

Images, file names and patients stay at the site. To the server go: the tensors of the model, how often each prototype
was nearest (it shows which classes a site has), numbers of images and steps, losses, confusion counts, seconds, the
version of the package, and one sentence if something failed. The lead gets, of each site, all of that but the tensors,
and the common model.
{notes}
## Code

The job holds settings and names of components; all code is the package `fedproin`.

{place}

A site whose package has another hash refuses the job, and says so.

| | |
|---|---|
{versions}

## Settings that differ from the defaults

{settings}

## How to verify

    sha256sum --check MANIFEST.sha256   # every file of this delivery is the one that was packed
    sha256sum MANIFEST.sha256           # compare with what the coordinator tells you, by telephone
    fedproin --version                  # where the package is installed: {identity}
"""

IN_JOB = """\
The package comes with the job, in `{job}/app/custom/fedproin`, so a site must allow jobs that bring code (BYOC). Where
a copy of `fedproin` is installed, that one runs instead."""

IN_WHEEL = """\
The job brings no code, so a site need not allow that (BYOC). Install the wheel at the server and at every site:

    pip install --no-deps wheel/{wheel}

and let FLARE build its classes: `class_allow_list` in the kit's `local/resources.json` needs the entry `fedproin.`, as
in `class_allow_list.json`. That list replaces FLARE's own, so it must hold FLARE's entries too; `fedproin site init`
writes it."""

NO_CLASSES = (
    "The job names no data.classes, so only a simulation, or a rehearsal with data.synthetic, can run it: "
    """pack it with --set 'data.classes=["a", "b"]'."""
)
NO_DEADLINE = (
    "The job sets no federation.deadline_seconds: a round waits for a silent site as long as FLARE still hears from "
    "it. Pack it with --set federation.deadline_seconds=SECONDS, several times what a round takes."
)
SYNTHETIC = "The job is a rehearsal: data.synthetic lets every site draw its own pictures, and no data is read."


@dataclass(frozen=True)
class Review:
    """What is said of a packed job.

    Attributes:
        options: of the method, as `method_options` gives them.
        identity: of the code that it was packed with.
        wheel: file name of the wheel; empty when the job brings its code.
    """

    job: str
    settings: Settings
    options: Any
    identity: Identity
    wheel: str

    @property
    def notes(self) -> list[str]:
        """What the coordinator should know before submitting."""
        data = self.settings.data
        if data.synthetic:
            return [SYNTHETIC]
        missing = {NO_CLASSES: not data.classes, NO_DEADLINE: self.settings.federation.deadline_seconds is None}
        return [note for note, holds in missing.items() if holds]

    def page(self) -> str:
        """The page, in Markdown."""
        data, federation = self.settings.data, self.settings.federation
        place = IN_WHEEL.format(wheel=self.wheel) if self.wheel else IN_JOB.format(job=self.job)
        return PAGE.format(
            job=self.job,
            method=self.options.name,
            backbone=self.settings.model.backbone,
            size=data.image_size,
            classes=f"{len(data.classes)} classes: {', '.join(data.classes)}" if data.classes else "classes: not named",
            rounds=federation.rounds,
            share=federation.participation,
            epochs=self.settings.training.local_epochs,
            notes="".join(f"\n**Note:** {note}\n" for note in self.notes),
            place=place,
            versions="\n".join(f"| {name} | {text} |" for name, text in self._versions().items()),
            settings=self._changed() or "None.",
            identity=self.identity,
        )

    def _versions(self) -> dict[str, str]:
        others = {f"packed with {name}": text for name, text in versions().items() if name != "fedproin"}
        return {"fedproin": str(self.identity), "SHA-256 of the code": self.identity.hash} | others

    def _changed(self) -> str:
        values = asdict(self.settings) | {"method": asdict(self.options)}
        defaults = asdict(Settings()) | {"method": asdict(type(self.options)())}
        rows = [f"| `{key}` | {_cell(value)} | {_cell(old)} |" for key, value, old in differences(values, defaults)]
        return "\n".join(["| setting | here | default |", "|---|---|---|", *rows]) if rows else ""


def method_options(settings: Settings) -> Any:
    """The options of the method, with their defaults.

    Raises:
        SettingsError: there is no such method, or no such option.
    """
    from fedproin.methods import create_method

    return create_method(settings).options


def differences(
    values: Mapping[str, Any], defaults: Mapping[str, Any], where: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    """Key, value and default of every setting that is not at its default."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from differences(value, defaults[name], f"{where}{name}.")
        elif value != defaults[name]:
            yield f"{where}{name}", value, defaults[name]


def _cell(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False).replace("|", "\\|")
