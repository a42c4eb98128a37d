"""Where FLARE has put the files of a job."""

from pathlib import Path

from nvflare.apis.workspace import Workspace


def config_directory(workspace: Workspace, job_id: str) -> Path:
    """The job's `app/config`.

    FLARE's own `get_app_config_dir` names the folder above it in a kit of `nvflare package`, whose start script leaves
    `config_folder` empty: settings and the hash of the code would not be found there.
    """
    return Path(workspace.get_app_dir(job_id)) / "config"
