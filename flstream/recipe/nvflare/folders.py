"""Apps of a job folder, their configurations, and the sites that they are deployed to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flstream.errors import UsageError
from flstream.recipe.nvflare.reading import SUFFIXES, ConfigFile, read_config
from flstream.text import natural_key

SERVER, ALL_SITES = "server", "@ALL"
CUSTOM = "custom"
_CONFIG, _META = "config", "meta"
_SERVER_FILE, _CLIENT_FILE = "config_fed_server", "config_fed_client"


@dataclass(frozen=True)
class AppFolder:
    """An app of a job folder: configurations and code."""

    root: Path
    """Absolute path of the job folder."""
    path: Path
    """Absolute path of the folder."""
    targets: tuple[str, ...] | None
    """Names of the sites that it is deployed to, and of the server; None for all of them."""
    server: ConfigFile | None
    """Configuration of the server."""
    client: ConfigFile | None
    """Configuration of the sites."""
    custom: Path | None
    """Absolute path of the folder with its code."""

    @property
    def sites(self) -> tuple[str, ...] | None:
        """Names of the sites that it is deployed to; None for all of them."""
        if self.targets is None or ALL_SITES in self.targets:
            return None
        return tuple(name for name in self.targets if name != SERVER)

    @property
    def is_for_the_server(self) -> bool:
        """Whether it is deployed to the server."""
        return self.targets is None or SERVER in self.targets or ALL_SITES in self.targets

    @property
    def is_for_sites(self) -> bool:
        """Whether it is deployed to a site."""
        return self.sites is None or bool(self.sites)


@dataclass(frozen=True)
class JobFolder:
    """A job folder, read."""

    root: Path
    """Absolute path of the folder."""
    name: str
    """Name of the job."""
    meta: ConfigFile | None
    """Description of the job, from the meta file."""
    apps: tuple[AppFolder, ...]
    """Its apps: those of the deploy map, in order, or all."""
    others: tuple[str, ...]
    """Paths of files and folders that are read by no one, relative to the folder."""

    @property
    def sites(self) -> tuple[str, ...] | None:
        """Names of all sites, in the order of the deploy map; None where it names none."""
        named = [app.sites for app in self.apps if app.is_for_sites]
        if not named or None in named:
            return None
        return tuple(dict.fromkeys(site for sites in named for site in sites or ()))


def read_folder(source: Path) -> JobFolder:
    """Read a job folder, or one configuration alone.

    Args:
        source: Path of the folder, or of a file such as `config_fed_server.conf`.

    Raises:
        UsageError: It has no configuration, or one cannot be used.
        OSError: It cannot be read.
    """
    source = source.resolve(strict=True)
    return _read_file(source) if source.is_file() else _read_folder(source)


def _read_file(path: Path) -> JobFolder:
    if path.suffix not in SUFFIXES:
        raise UsageError(f"{path} is no configuration; its suffix is none of {', '.join(SUFFIXES)}")
    config = read_config(path, path.name)
    above = [each.name for each in path.parents if each.name not in ("", _CONFIG)]
    is_client = "client" in path.stem or (
        "server" not in path.stem and "executors" in config.values
    )
    server, client = (None, config) if is_client else (config, None)
    app = AppFolder(path.parent, path.parent, None, server, client, None)
    return JobFolder(path.parent, above[0] if above else path.stem, None, (app,), ())


def _read_folder(root: Path) -> JobFolder:
    meta_path = _first(root, _META)
    meta = None if meta_path is None else read_config(meta_path, meta_path.name)
    values = {} if meta is None else meta.values
    if values.get("deploy_map") not in (None, {}):
        apps = tuple(_deployed(root, values["deploy_map"], str(meta and meta.name)))
    else:
        apps = tuple(_app(root, path, None) for path in _with_configurations(root))
    if not any(app.server or app.client for app in apps):
        raise UsageError(
            f"{root} is no job folder of NVFlare: it has no {_SERVER_FILE} nor {_CLIENT_FILE} "
            f"({', '.join(SUFFIXES)}), in itself or in the folder of an app"
        )
    name = values.get("name")
    return JobFolder(
        root,
        name if isinstance(name, str) and name else root.name,
        meta,
        apps,
        tuple(_others(root, apps, meta_path)),
    )


def _with_configurations(root: Path) -> list[Path]:
    """Return the folders of apps where no deploy map names them."""
    folders = [path for path in root.iterdir() if path.is_dir() and path.name != CUSTOM]
    found = [root, *sorted(folders, key=lambda path: natural_key(path.name))]
    return [path for path in found if any(_configurations(path))]


def _deployed(root: Path, deploy_map: Any, file: str) -> Iterator[AppFolder]:
    if not isinstance(deploy_map, dict):
        raise UsageError(f"{file}: deploy_map must be a section of apps with their sites")
    for name, targets in deploy_map.items():
        path = (root / name).resolve()
        if not path.is_relative_to(root):
            raise UsageError(f"{file}: deploy_map.{name} lies outside of the job folder")
        if not path.is_dir():
            # A template of a job has its only app's files at the top.
            if len(deploy_map) > 1 or not any(_configurations(root)):
                raise UsageError(f"{file}: deploy_map names {name}, and there is no folder {path}")
            path = root
        yield _app(root, path, tuple(_targets(targets, f"{file}: deploy_map.{name}")))


def _targets(targets: Any, place: str) -> Iterator[str]:
    """Yield the names of a deploy map's entry, which may be in sections with an image."""
    for each in targets if isinstance(targets, list) else [targets]:
        match each:
            case str():
                yield each
            case {"sites": list(sites)} if all(isinstance(site, str) for site in sites):
                yield from sites
            case _:
                raise UsageError(f"{place} must be a list of names of sites")


def _app(root: Path, path: Path, targets: tuple[str, ...] | None) -> AppFolder:
    server, client = (
        None if found is None else read_config(found, found.relative_to(root).as_posix())
        for found in _configurations(path)
    )
    custom = path / CUSTOM
    return AppFolder(root, path, targets, server, client, custom if custom.is_dir() else None)


def _configurations(folder: Path) -> tuple[Path | None, Path | None]:
    """Return the paths of an app's configurations: of the server, and of the sites."""
    server, client = (
        _first(folder / _CONFIG, stem) or _first(folder, stem)
        for stem in (_SERVER_FILE, _CLIENT_FILE)
    )
    return server, client


def _first(folder: Path, stem: str) -> Path | None:
    paths = (folder / f"{stem}{suffix}" for suffix in SUFFIXES)
    return next((path for path in paths if path.is_file()), None)


def _others(root: Path, apps: Sequence[AppFolder], meta: Path | None) -> Iterator[str]:
    """Yield what lies in the job folder, or in an app of it, and is not read."""
    known = {meta, *(app.path for app in apps), *(app.custom for app in apps)}
    folders = [root]
    for app in apps:
        known.update(_configurations(app.path))
        folders += [app.path, app.path / _CONFIG]
    known.update(folders)
    for folder in dict.fromkeys(folders):
        if folder.is_dir():
            for path in sorted(folder.iterdir(), key=lambda path: natural_key(path.name)):
                if path not in known and path.name != "__pycache__":
                    yield path.relative_to(root).as_posix()
