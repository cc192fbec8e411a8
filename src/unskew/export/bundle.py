"""Write a finished run's model for devices without Python: the model, its items, a model card."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np

from unskew.engine import Recommender, newcomer_scores
from unskew.export.card import ONNX_INTERFACE, PAGE_INTERFACE, model_card, model_facts
from unskew.export.graph import build_graph, import_onnx
from unskew.export.page import Contents, render_page
from unskew.export.tables import (
    MEASURED_USERS,
    Precision,
    Prepared,
    describe,
    prepare,
    quality,
)
from unskew.files import write_bytes, write_json, write_text
from unskew.methods import short_name
from unskew.methods.newcomers import ItemWeights, Neighbours
from unskew.ragged import distinct
from unskew.runs import Run
from unskew.types import Cohort, Float32, Ragged, UnskewError

ITEMS_FORMAT, ITEMS_VERSION = "unskew-items", 1
"""Format name and version of ``items.json``."""
MAX_PAGE_MB = 3.0
"""Default largest size of a page, in millions of bytes."""
PAGE_NEIGHBOURS = (100, 70, 50, 35, 25, 15, 10)
"""Numbers of item-item weights per item that a page keeps: the first one that it has room for."""
FACT_BYTES = 1_000
"""Room in a page for what is known about its tables only after they are chosen."""


@dataclass(frozen=True)
class Exported:
    """A model ready to be written, and what it is."""

    recommender: Recommender
    prepared: Prepared
    content: bytes
    """The model's file: ONNX or HTML."""
    facts: list[tuple[str, str]]
    """Facts for the model card, each with its name."""
    ndcg: tuple[float, float] | None
    """NDCG@10 of the test items among all unseen ones with the original tables and with those in
    the file; None if they are the same."""

    def scores(self, histories: Ragged) -> Float32:
        """Python's scores of newcomers, computed from the tables as they are in the file."""
        users, n_items = np.arange(len(histories.indptr) - 1), self.recommender.split.n_items
        cohort = Cohort(users, histories, distinct(histories), n_items, 0, 1)
        return newcomer_scores(self.recommender.model[0], self.prepared.download, cohort)


def write_onnx(exported: Exported, folder: Path, command: str = "") -> list[Path]:
    """Write ``model.onnx``, ``items.json`` and ``model_card.md``; returns their paths."""
    split = exported.recommender.split
    write_bytes(folder / "model.onnx", exported.content)
    write_json(
        folder / "items.json",
        {
            "format": ITEMS_FORMAT,
            "version": ITEMS_VERSION,
            "labels": list(split.item_ids),
            "titles": list(split.titles or split.item_ids),
        },
    )
    card = model_card(exported.facts, exported.content, ONNX_INTERFACE, command)
    write_text(folder / "model_card.md", card)
    return [folder / name for name in ("model.onnx", "items.json", "model_card.md")]


def write_page(exported: Exported, folder: Path, command: str = "") -> list[Path]:
    """Write ``index.html`` and ``model_card.md``; returns their paths."""
    write_bytes(folder / "index.html", exported.content)
    card = model_card(exported.facts, exported.content, PAGE_INTERFACE, command)
    write_text(folder / "model_card.md", card)
    return [folder / name for name in ("index.html", "model_card.md")]


def to_onnx(
    run: Run,
    seed: int | None = None,
    *,
    float16: bool = False,
    k: int = 10,
    neighbours: int | None = None,
) -> Exported:
    """The model of a run's seed (default: the first) as ONNX. ``k`` is the length of the list of
    best items. Of a matrix of item-item weights, ``neighbours`` per item are kept (default: all).
    """
    recommender = run.recommender(seed)
    method, download = recommender.model
    describe(method, download)
    import_onnx()
    precision: Precision = "float16" if float16 else "float32"
    prepared = prepare(method, download, recommender.split.n_items, precision, neighbours)
    ndcg, about_tables = _measure(recommender, prepared)
    facts = [*model_facts(run, recommender), about_tables]
    model = build_graph(prepared, k, {"unskew": version("unskew"), **dict(facts)})
    try:
        content: bytes = model.SerializeToString()
    except ValueError:  # protobuf's limit
        raise UnskewError(
            f"{method.name} on {run.spec.data} has more than the 2 GB that an ONNX file can hold; "
            "keep fewer weights with --neighbours."
        ) from None
    return Exported(recommender, prepared, content, facts, ndcg)


def to_page(
    run: Run,
    seed: int | None = None,
    *,
    float16: bool = False,
    k: int = 10,
    neighbours: int | None = None,
    max_mb: float = MAX_PAGE_MB,
) -> Exported:
    """The model of a run's seed (default: the first) as one HTML page of at most ``max_mb``.

    Tables are rounded to float16 or, where that is too large and ``float16`` does not insist on
    it, to 8 bits. Of a matrix of item-item weights, ``neighbours`` per item are kept (default:
    the first of ``PAGE_NEIGHBOURS`` for which there is room)."""
    recommender = run.recommender(seed)
    facts = model_facts(run, recommender)

    def render(prepared: Prepared, more: list[tuple[str, str]]) -> bytes:
        contents = _contents(run, recommender, [*facts, *more], k)
        return render_page(prepared, contents).encode()

    size = 0
    for prepared in _page_tables(recommender, float16, neighbours):
        size = len(render(prepared, [])) + FACT_BYTES
        if size <= max_mb * 1e6:
            ndcg, about_tables = _measure(recommender, prepared)
            content = render(prepared, [about_tables])
            return Exported(recommender, prepared, content, [*facts, about_tables], ndcg)
    raise UnskewError(
        f"The page of {recommender.model[0].name} on {run.spec.data} would have {size / 1e6:.1f} "
        f"MB, more than --max-mb {max_mb:g}; allow more, or write --format onnx."
    )


def _page_tables(
    recommender: Recommender, float16: bool, neighbours: int | None
) -> Iterator[Prepared]:
    """Ways to store the tables of a page, best first."""
    method, download = recommender.model
    n_items = recommender.split.n_items
    if isinstance(describe(method, download), ItemWeights):
        for kept in PAGE_NEIGHBOURS if neighbours is None else (neighbours,):
            yield prepare(method, download, n_items, "float16", kept)
        return
    yield prepare(method, download, n_items, "float16")
    if not float16:
        yield prepare(method, download, n_items, "int8")


def _measure(
    recommender: Recommender, prepared: Prepared
) -> tuple[tuple[float, float] | None, tuple[str, str]]:
    """NDCG@10 with the original tables and with those of the file, and a fact that says so."""
    method, download = recommender.model
    if all(one is other for one, other in zip(download, prepared.download, strict=True)):
        return None, ("Tables", "as trained")
    name: str = "8-bit integers" if prepared.precision == "int8" else prepared.precision
    if isinstance(prepared.arithmetic, Neighbours):
        name += f", {prepared.arithmetic.neighbours.shape[1]} weights per item"
    split = recommender.split
    before, after = (quality(method, tables, split) for tables in (download, prepared.download))
    measured = f"NDCG@10 of the test items {after:.4f}, as trained {before:.4f}"
    among = f"all unseen items, newcomers' arithmetic, up to {MEASURED_USERS:,} users"
    return (before, after), ("Tables", f"{name}; {measured} ({among})")


def _contents(run: Run, recommender: Recommender, facts: list[tuple[str, str]], k: int) -> Contents:
    split, method = recommender.split, recommender.model[0]
    return Contents(
        short_name(run.spec.method),
        Path(run.spec.data).name,
        facts,
        split.item_ids,
        split.titles or split.item_ids,
        np.bincount(split.seen.items, minlength=split.n_items).tolist(),
        split.n_users,
        k,
        method.aggregation != "central",
        run.result().bytes_up or 0.0,
        run.result().privacy is not None,
    )
