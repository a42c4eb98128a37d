import pytest
from nvflare.apis.workspace import Workspace

from fedproin.flare.workspace import config_directory


@pytest.mark.parametrize("config_folder", ["config", ""], ids=["nvflare provision", "nvflare package"])
def test_the_jobs_config_is_found_whatever_the_kits_start_script_says(tmp_path, config_folder):
    for name in ("startup", "local"):
        (tmp_path / name).mkdir()
    workspace = Workspace(str(tmp_path), "site-1", config_folder)
    assert config_directory(workspace, "job") == tmp_path / "job" / "app_site-1" / "config"
