"""Tensors that each site received last, of which model, where sites are sent parts of models."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING

from flstream.errors import WorkflowError
from flstream.model.composed import composed
from flstream.model.selection import Part, Selection, selected_names
from flstream.model.source import Source

if TYPE_CHECKING:
    from flstream.server.model_store import ModelStore
    from flstream.server.program_view import Model
    from flstream.server.training import SiteTraining

# The versions of selections of tensors, the last received ones last; None is the whole model.
_Versions = tuple[tuple[Selection | None, int], ...]


class ReceivedTensors:
    """The version of the model of which each site has received each tensor last.

    It follows from the records of effects, so it is the same when a run is replayed.
    """

    def __init__(self, store: ModelStore) -> None:
        self._store = store
        # To look a layout up takes as long as it has tensors.
        self._selected: dict[str | Part, frozenset[str]] = {}
        # By site: the round of its last training, if it has answered, and what it has received.
        self._sites: dict[str, tuple[int, _Versions]] = {}
        # Sites whose last training was of parts: those keep a file of what they received.
        self._with_file: set[str] = set()
        # By version, the tensors that its fold may have changed; all where there is no entry.
        self._changed: dict[int, Selection] = {}
        # By version, that of the model which it was made of.
        self._parents: dict[int, int] = {}
        # Whether a training was sent or has sent back a part of a model.
        self._has_parts = False

    def begins_anew(self, site: str, round_number: int) -> bool:
        """Return whether a site lacks what the others have: it failed, or was left out before."""
        last, _ = self._sites.get(site, (-1, ()))
        return last < round_number - 1

    def lacks_file(self, site: str) -> bool:
        """Return whether a site has no file of what it received, as codecs compare it."""
        return site not in self._with_file

    @property
    def is_empty(self) -> bool:
        """Whether no site has received anything yet."""
        return not self._sites

    def take(self, training: SiteTraining, answered: Collection[str]) -> None:
        """Note what the sites of a training have received, now that they answered or failed."""
        self._has_parts |= training.parts is not None
        if training.parts is not None:
            self._with_file.update(training.tasks)
        else:
            self._with_file.difference_update(training.tasks)
        known: dict[_Versions, tuple[int, _Versions]] = {}  # mostly the same for all sites
        for site in training.tasks:
            if site in answered:
                versions = self._versions(training, site)
                self._sites[site] = known.setdefault(versions, (training.round, versions))
            else:
                self._sites.pop(site, None)

    def add_model(self, version: int, parent: int, trainings: Collection[SiteTraining]) -> None:
        """Note of which model one was made, and which tensors the fold may have changed."""
        self._parents[version] = parent
        sent = [None if training.parts is None else training.parts.send for training in trainings]
        selections = [selection for selection in sent if selection is not None]
        if selections and len(selections) == len(sent):
            entries = (entry for selection in selections for entry in selection)
            self._changed[version] = tuple(dict.fromkeys(entries))

    def names(self, what: str, selection: Selection) -> frozenset[str]:
        """Return the names of a selection's tensors.

        Args:
            what: The argument that has the selection, for messages.
            selection: The selection.

        Raises:
            WorkflowError: A pattern matches no name, or there are fewer layers than parts.
        """
        return frozenset().union(*(self._entry(what, entry) for entry in selection))

    def _entry(self, what: str, entry: str | Part) -> frozenset[str]:
        """Return the names of a pattern's or a part's tensors."""
        names = self._selected.get(entry)
        if names is None:
            facts = self._store.facts
            assert facts is not None
            names = self._selected[entry] = selected_names(what, (entry,), *facts)
        return names

    def base(self, training: SiteTraining, site: str) -> Source:
        """Return the model that a site's update is compared with: each tensor as it has it.

        Raises:
            UnsoundModelError: A file is damaged or gone.
        """
        model, parts = training.trained_from, training.parts
        source = self._store.source(model)
        sent: Collection[str] = source.layout.by_name
        if parts is not None and parts.send is not None:
            sent = self.names("send", parts.send)
        other = {
            name: version
            for name, version in self._by_name(self._versions(training, site), sent)
            if self._changed_at(version, name) != self._changed_at(model.version, name)
        }
        if not other:
            return source
        files = {version: self._file(version, site, other) for version in set(other.values())}
        places = {
            name: (files[other[name]] if name in other else source, spec)
            for name, spec in source.layout.by_name.items()
        }
        return composed(places, source.layout.aliases)

    def has_base(self, site: str, model: Model, selection: Selection | None) -> bool:
        """Return whether a site has what a model's changes in some tensors are added to.

        Args:
            site: Name of a site that has trained before.
            model: The model.
            selection: The tensors; None for all.
        """
        _, versions = self._sites.get(site, (-1, ()))
        return self._follows(versions, model, selection)

    def has_late_base(self, training: SiteTraining, site: str) -> bool:
        """Return the same of a site in a training, and of the tensors that it is sent late."""
        parts, model = training.parts, training.late_model
        assert parts is not None
        assert model is not None
        return self._follows(self._versions(training, site, is_late=False), model, parts.late)

    def _follows(self, versions: _Versions, model: Model, selection: Selection | None) -> bool:
        parent, names = self._parents.get(model.version), self._names(selection)
        known = dict(self._by_name(versions, names))
        return (
            parent is not None
            and known.keys() == names
            and all(
                self._changed_at(version, name) == self._changed_at(parent, name)
                for name, version in known.items()
            )
        )

    def needed(self) -> set[int]:
        """Return the versions of which a site has a tensor that has changed since."""
        if not self._has_parts or (facts := self._store.facts) is None:
            return set()
        newest = self._store.newest.record.version
        return {
            version
            for versions in {versions for _, versions in self._sites.values()}
            for name, version in self._by_name(versions, facts[0].by_name)
            if self._changed_at(version, name) != self._changed_at(newest, name)
        }

    def _versions(self, training: SiteTraining, site: str, *, is_late: bool = True) -> _Versions:
        """Return what a site of a training has received, by its end or without what is late."""
        parts, late = training.parts, training.late_model
        receive = None if parts is None else parts.receive
        if receive is None or site in (training.whole or ()):
            versions: _Versions = ((None, training.base.version),)
        else:
            _, versions = self._sites.get(site, (-1, ()))
            versions = _with(versions, receive, training.base.version)
        if is_late and parts is not None and parts.late is not None and late is not None:
            versions = _with(versions, parts.late, late.version)
        return versions

    def _by_name(self, versions: _Versions, names: Collection[str]) -> Iterator[tuple[str, int]]:
        """Yield the version of each tensor that a site has received."""
        missing = frozenset(names)
        for selection, version in reversed(versions):
            selected = self._names(selection)
            for name in missing & selected:
                yield name, version
            missing -= selected

    def _file(self, version: int, site: str, tensors: Mapping[str, int]) -> Source:
        handle = self._store.handle(version)
        if not self._store.has_file(handle):
            name = next(name for name, other in tensors.items() if other == version)
            raise WorkflowError(
                f"the update of {site} cannot be compared with tensor {name!r} of model {version}, "
                "which the site received last, and whose file has gone: send the site what has "
                "changed since (receive), or set checkpoints.keep = all"
            )
        return self._store.source(handle)

    def _names(self, selection: Selection | None) -> frozenset[str]:
        if selection is None:
            facts = self._store.facts
            assert facts is not None
            return frozenset(facts[0].by_name)
        return self.names("receive", selection)

    def _changed_at(self, version: int, name: str) -> int:
        """Return the last version up to this one whose fold may have changed a tensor."""
        while (changed := self._changed.get(version)) is not None:
            if any(name in self._entry("send", entry) for entry in changed):
                break
            version = self._parents[version]
        return version


def _with(versions: _Versions, selection: Selection, version: int) -> _Versions:
    if not selection:
        return versions
    return (*(pair for pair in versions if pair[0] != selection), (selection, version))
