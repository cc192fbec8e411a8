"""The specification of a run: everything that determines its result, in one object."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unskew.data import load, load_split, with_titles
from unskew.evaluation import CUTOFFS, EvaluationProtocol, find_protocol
from unskew.methods import create, parse_settings
from unskew.privacy import LocalPrivacy, check_accountant
from unskew.settings import MAX_WHOLE_NUMBER, Settings, setting
from unskew.settings import parse_settings as parse_fields
from unskew.types import Interactions, Method, UnskewError


@dataclass(frozen=True)
class RunSpec(Settings):
    """A method with its settings, on a data source, under a protocol, for some seeds."""

    method: str = "fednext"
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
    train: str | None = None
    """For data that is already split: the file of the training rows, in place of ``data``."""
    validation: str | None = None
    """The file of the validation rows that belong to ``train``."""
    test: str | None = None
    """The file of the test rows that belong to ``train``."""
    cutoffs: tuple[int, ...] = CUTOFFS
    """Lengths k of recommended lists at which metrics are reported; 10 always is."""
    item_features: str | None = None
    """Path of a table with a column of items and columns of numbers, for methods that need it."""
    evaluate_every: int = setting(1, at_least=1)
    """Number of rounds from one evaluation to the next; the last round is always evaluated."""
    evaluate_users: int | None = setting(None, at_least=1)
    """Evaluate this many users between rounds, drawn once, and everybody at the end (default:
    always everybody)."""
    rules: Mapping[str, Any] = field(default_factory=dict)
    """Fields of an `EvaluationProtocol` of your own; empty for the named protocols."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_data()
        _ = self.evaluation
        if not self.cutoffs or min(self.cutoffs) < 1 or max(self.cutoffs) > MAX_WHOLE_NUMBER:
            raise UnskewError("Cut-offs must be whole numbers of at least 1, such as 1,10,100.")
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

    def _check_data(self) -> None:
        """Raise an UnskewError if validation or test files come without a training file, or if a
        training file comes with another data source. Sets ``data`` to the training file."""
        if self.train is None:
            if self.validation is not None or self.test is not None:
                raise UnskewError("Validation and test files need the training file: --train FILE.")
            return
        if self.data not in (RunSpec.data, self.train):
            raise UnskewError(f"Give either the data {self.data} or a training file, not both.")
        object.__setattr__(self, "data", self.train)

    @property
    def evaluation(self) -> EvaluationProtocol:
        """The evaluation protocol: a named one, or a custom one whose fields are in ``rules``."""
        if not self.rules:
            return find_protocol(self.protocol)
        try:
            return EvaluationProtocol(self.protocol, **self.rules)
        except TypeError as error:
            raise UnskewError(
                f"The rules of protocol {self.protocol} are incomplete ({error}); give all fields "
                "of EvaluationProtocol."
            ) from None

    def build(self) -> Method:
        """Create the method with the settings of this run."""
        return create(self.method, **self.settings)

    def load(self, data_dir: Path | None = None, progress: Any = None) -> Interactions:
        """Load the data. ``progress`` is called with the bytes downloaded and their total."""
        if self.train is not None:
            split = load_split(
                self.train,
                self.validation,
                self.test,
                name=Path(self.train).stem,
                columns=dict(self.columns) or None,
                skip_bad_rows=self.skip_bad_rows,
                min_user_rows=self.min_user_rows,
            )
            return split if self.titles is None else with_titles(split, self.titles)
        return load(
            self.data,
            data_dir=data_dir,
            columns=dict(self.columns) or None,
            skip_bad_rows=self.skip_bad_rows,
            min_user_rows=self.min_user_rows,
            titles=self.titles,
            item_features=self.item_features,
            progress=progress,
        )

    def to_json(self) -> dict[str, Any]:
        """Convert to a JSON object, as stored in ``run.json``."""
        values = dataclasses.asdict(self)
        values |= {"seeds": list(self.seeds), "cutoffs": list(self.cutoffs)}
        for name, default in _NEWER_FIELDS.items():
            if values[name] == default:
                del values[name]
        return values

    @staticmethod
    def from_mapping(values: Mapping[str, Any]) -> RunSpec:
        """Build a specification from values read from a TOML or JSON file."""
        parsed = _parse(values)
        ldp = parsed.get("ldp")
        return RunSpec(**parsed | {"ldp": None if ldp is None else LocalPrivacy(**ldp)})


_NEWER_FIELDS: Mapping[str, Any] = {
    "train": None,
    "validation": None,
    "test": None,
    "item_features": None,
    "evaluate_every": 1,
    "evaluate_users": None,
    "rules": {},
    "cutoffs": list(CUTOFFS),
}
"""Fields that ``RunSpec`` did not always have, with their defaults. They are written to
``run.json`` only if they differ from these, so that older versions of the package can read it."""


def _parse(values: Mapping[str, Any]) -> dict[str, Any]:
    return parse_fields(RunSpec, values, "A run")


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML config file; values are converted to the types of the fields of ``RunSpec``."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UnskewError(f"There is no config file {path}.") from None
    except (
        OSError,
        ValueError,
        RecursionError,
    ) as error:  # also of thousands of digits or brackets
        raise UnskewError(f"{path} is not a TOML file ({error}); mend that line.") from None
    return _parse(values)
