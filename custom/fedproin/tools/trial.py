"""Training as the job will do it, on two batches of the site's own images. It imports torch: only a child loads it."""

import math
import shutil
import uuid
from dataclasses import replace

import torch

from fedproin.errors import UserError
from fedproin.federation.messages import Answer, Task
from fedproin.federation.site import Site, describe_failure
from fedproin.federation.trainer_process import SiteArguments
from fedproin.tools.findings import Finding, fail, ok
from fedproin.training.batches import Part

BATCHES = 2
GIB = 2**30


class TwoBatches(Site):
    """A site that has no more images in a part than fill two batches; they are taken from all over it."""

    def _part(self, name: str) -> Part:
        part = super()._part(name)
        wanted = BATCHES * part.batch_size
        rows = torch.arange(len(part))[:: max(1, len(part) // wanted)][:wanted]
        return replace(part, indices=part.indices[rows.numpy()], labels=part.labels[rows])


def check_gpu(promised: int, memory: float) -> Finding:
    """What torch finds, against the number of GPUs and the GiB of each that the site's resources.json promises."""
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if found < promised:
        advice = "install the NVIDIA driver and torch for its CUDA, or `fedproin site init` with fewer --gpus"
        return fail("gpu", f"local/resources.json promises {promised} GPUs and torch finds {found}", advice)
    if not found:
        return ok("gpu", "none, training runs on the CPU")
    free, total = torch.cuda.mem_get_info()
    about = f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}, {free / GIB:.1f} of {total / GIB:.1f} GiB free"
    if promised and memory * GIB > total:
        advice = "`fedproin site init` with a smaller --gpu-memory"
        return fail("gpu", f"local/resources.json promises {memory:g} GiB a GPU: {about}", advice)
    return ok("gpu", about)


def try_training(site: SiteArguments) -> Finding:
    """Two steps of one epoch. The decoded images stay in the site's cache for the job, everything else is removed."""
    training = replace(site.settings.training, local_epochs=1, epoch_length="dataset")
    run_id = uuid.uuid4().hex
    try:
        trial = TwoBatches(site.name, replace(site.settings, training=training), site.location, site.directory)
        opened = trial.run(_task(trial, run_id, train=()))
        answer = opened if opened.error else trial.run(_task(trial, run_id, train=(site.name,)))
    except UserError as error:
        return fail("training", str(error), "")
    except Exception as error:  # whatever it is, the doctor says so and its other lines stand
        return fail("training", describe_failure(error, site.directory), "")
    finally:
        shutil.rmtree(site.directory / "state" / run_id, ignore_errors=True)
    return _verdict(answer, opened.seconds, trial.device)


def _task(site: Site, run_id: str, train: tuple[str, ...]) -> Task:
    model = {name: tensor.cpu().numpy() for name, tensor in site.model.state_dict().items()}
    return Task("round", run_id, site.settings.digest(), 0, (site.name,), train, False, None, model)


def _verdict(answer: Answer, opening: float, device: torch.device) -> Finding:
    if answer.error:
        return fail("training", answer.error, "")
    if not answer.trained:
        return fail("training", "No image is in the training part", "look at the column `split` and at data.split")
    if not all(math.isfinite(loss) for losses in answer.losses.values() for loss in losses):
        return fail("training", "The loss is not a finite number", "ask the coordinator: learning rate, precision")
    speed = answer.presentations / answer.seconds
    return ok(
        "training",
        f"{answer.steps} steps in {answer.seconds:.1f} s on {device.type}, {speed:.0f} images/s{_peak(device)}; "
        f"opening the images took {opening:.1f} s",
    )


def _peak(device: torch.device) -> str:
    return f", {torch.cuda.max_memory_allocated() / GIB:.1f} GiB of the GPU" if device.type == "cuda" else ""
