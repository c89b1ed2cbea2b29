"""Job folders of NVFlare, as its users have them."""

import shutil
from pathlib import Path

import pytest

FOLDERS = Path(__file__).parent / "recipe" / "nvflare_folders"
_CODE = FOLDERS.with_name("nvflare_code")
_APPS = (
    "scatter_gather/app",
    "template_fedavg/app",
    "cyclic_relay/app",
    "two_apps/clinic_app",
    "two_apps/ward_app",
)


@pytest.fixture(scope="session")
def nvflare_folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the job folders, with the code that several of them share in its places."""
    folders = tmp_path_factory.mktemp("nvflare") / "folders"
    shutil.copytree(FOLDERS, folders)
    for app in _APPS:
        shutil.copytree(_CODE, folders / app / "custom", dirs_exist_ok=True)
    server = folders / "two_apps" / "server_app" / "custom"
    server.mkdir(exist_ok=True)
    shutil.copy(_CODE / "net.py", server)
    return folders
