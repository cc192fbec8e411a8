"""The specification of a run: everything that determines its result, as one value."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unskew.data import load
from unskew.evaluation import PROTOCOLS
from unskew.methods import create, parse_settings
from unskew.privacy import LocalPrivacy, check_accountant
from unskew.settings import parse_settings as parse_fields
from unskew.types import Interactions, Method, UnskewError


@dataclass(frozen=True)
class RunSpec:
    """A method with its settings, on a data source, under a protocol, for some seeds."""

    method: str = "fedrefit"
    """Name in the registry."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the method that differ from its defaults."""
    data: str = "demo"
    """A source's name or a path."""
    protocol: str = "leak-free"
    """How to split, what training may draw as negatives, and what is ranked."""
    seeds: tuple[int, ...] = (0,)
    """One run per seed."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """For a file of your own: which column is user, item, rating, timestamp."""
    skip_bad_rows: bool = False
    """Drop and count bad rows instead of stopping at the first."""
    min_user_rows: int | None = None
    """Leave out users with fewer rows (default: the source's own rule)."""
    titles: str | None = None
    """A CSV with the items' titles."""
    ldp: LocalPrivacy | None = None
    """What devices do to their uploads before they leave: clipping and noise."""

    def __post_init__(self) -> None:
        if self.protocol not in PROTOCOLS:
            raise UnskewError(
                f'There is no protocol "{self.protocol}"; choose one of {", ".join(PROTOCOLS)}.'
            )
        fit = all(0 <= seed < 2**63 for seed in self.seeds)
        if not self.seeds or len(set(self.seeds)) != len(self.seeds) or not fit:
            raise UnskewError(
                "seeds must be distinct whole numbers from 0 to 2^63 - 1, one or more."
            )
        object.__setattr__(self, "settings", parse_settings(self.method, self.settings))
        method = self.build()
        if self.ldp is not None:
            if method.aggregation == "central":
                raise UnskewError(
                    f"{self.method} is not federated and uploads nothing; noise needs a federated "
                    "method, see `unskew methods`."
                )
            check_accountant(self.ldp)

    def build(self) -> Method:
        """A new method with these settings."""
        return create(self.method, **self.settings)

    def load(self, data_dir: Path | None = None, progress: Any = None) -> Interactions:
        """The interactions; ``progress`` is called with bytes done and in all of a download."""
        return load(
            self.data,
            data_dir=data_dir,
            columns=dict(self.columns) or None,
            skip_bad_rows=self.skip_bad_rows,
            min_user_rows=self.min_user_rows,
            titles=self.titles,
            progress=progress,
        )

    def to_json(self) -> dict[str, Any]:
        """As ``run.json`` holds it."""
        return dataclasses.asdict(self) | {"seeds": list(self.seeds)}

    @staticmethod
    def from_mapping(values: Mapping[str, Any]) -> RunSpec:
        """Read a specification from TOML or JSON values."""
        known = {f.name for f in dataclasses.fields(RunSpec)}
        for key in values:
            if key not in known:
                raise UnskewError(
                    f'A run has no "{key}"; it has {", ".join(sorted(known))}; '
                    "the method's own settings go under [settings]."
                )
        check_types(values)
        seeds, ldp = tuple(values.get("seeds", (0,))), values.get("ldp")
        if isinstance(ldp, Mapping):
            ldp = LocalPrivacy(**parse_fields(LocalPrivacy, ldp, "ldp"))
        return RunSpec(**{**values, "seeds": seeds, "ldp": ldp})


def check_types(values: Mapping[str, Any]) -> None:
    """Raise one sentence for the first value of a wrong type."""
    for key, value in values.items():
        fits, wanted = _KINDS.get(key, (_anything, ""))
        if not fits(value):
            raise UnskewError(f"{key} = {value!r} must be {wanted}.")


def _anything(_: Any) -> bool:
    return True


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_whole_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping)


_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "method": (_is_text, "a name in quotes"),
    "data": (_is_text, "a source's name or a path in quotes"),
    "protocol": (_is_text, "a name in quotes"),
    "titles": (lambda value: value is None or _is_text(value), "a path in quotes"),
    "settings": (_is_table, "a table such as { rounds = 50 }"),
    "seeds": (
        lambda value: isinstance(value, list | tuple) and all(map(_is_whole_number, value)),
        "a list of whole numbers such as [0, 1, 2]",
    ),
    "columns": (
        lambda value: _is_table(value) and all(map(_is_text, value.values())),
        'a table such as { user = "uid", item = "movie" }',
    ),
    "skip_bad_rows": (lambda value: isinstance(value, bool), "true or false"),
    "min_user_rows": (
        lambda value: value is None or (_is_whole_number(value) and value >= 1),
        "a whole number from 1",
    ),
    "ldp": (
        lambda value: value is None or isinstance(value, Mapping | LocalPrivacy),
        "a table such as { noise = 0.1 }",
    ),
}
"""For each field a check of its type, and the words for an error."""


def read_toml(path: Path) -> dict[str, Any]:
    """Read the values of a config file and check their types."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UnskewError(f"There is no config file {path}.") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UnskewError(f"{path} is not a TOML file ({error}); mend that line.") from None
    check_types(values)
    return values
