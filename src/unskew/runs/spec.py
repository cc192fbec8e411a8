"""The specification of a run: everything that determines its result, as one value."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unskew.data import load
from unskew.evaluation import PROTOCOLS
from unskew.methods import create, parse_settings
from unskew.privacy import LocalPrivacy, check_accountant
from unskew.settings import Settings, setting
from unskew.settings import parse_settings as parse_fields
from unskew.types import Interactions, Method, UnskewError


@dataclass(frozen=True)
class RunSpec(Settings):
    """A method with its settings, on a data source, under a protocol, for some seeds."""

    method: str = "fedrefit"
    """Name of a method of this package or of an installed one, or ``package.module:Class``."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the method that differ from its defaults."""
    data: str = "demo"
    """A source's name or a path."""
    protocol: str = "leak-free"
    """Evaluation protocol: the split, the negatives that training may draw, the ranked items."""
    seeds: tuple[int, ...] = (0,)
    """One run per seed."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """For your own file: names of its user, item, rating and timestamp columns."""
    skip_bad_rows: bool = False
    """Drop and count bad rows instead of stopping at the first."""
    min_user_rows: int | None = setting(None, at_least=1)
    """Leave out users with fewer rows (default: the source's own rule)."""
    titles: str | None = None
    """Path of a CSV file with the items' titles."""
    ldp: LocalPrivacy | None = None
    """Clipping and noise that devices apply to uploads; None: none."""

    def __post_init__(self) -> None:
        super().__post_init__()
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
        """Create the method with the settings of this run."""
        return create(self.method, **self.settings)

    def load(self, data_dir: Path | None = None, progress: Any = None) -> Interactions:
        """Load the data. ``progress`` is called with the bytes downloaded and their total."""
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
        """Convert to a JSON object, as stored in ``run.json``."""
        return dataclasses.asdict(self) | {"seeds": list(self.seeds)}

    @staticmethod
    def from_mapping(values: Mapping[str, Any]) -> RunSpec:
        """Build a specification from values read from a TOML or JSON file."""
        parsed = _parse(values)
        ldp = parsed.get("ldp")
        return RunSpec(**parsed | {"ldp": None if ldp is None else LocalPrivacy(**ldp)})


def _parse(values: Mapping[str, Any]) -> dict[str, Any]:
    return parse_fields(RunSpec, values, "A run")


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML config file; values are converted to the types of the fields of ``RunSpec``."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UnskewError(f"There is no config file {path}.") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UnskewError(f"{path} is not a TOML file ({error}); mend that line.") from None
    return _parse(values)
