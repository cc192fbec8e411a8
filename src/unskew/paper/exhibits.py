"""All tables and figures that ``unskew reproduce`` makes, in the order of the document."""

from __future__ import annotations

from unskew.paper import cost, methods, noise, pictures, rounds, skew, variants
from unskew.paper.plan import Exhibit

EXHIBITS: dict[str, Exhibit] = {
    exhibit.name: exhibit
    for exhibit in (
        cost.DATASETS_TABLE,
        methods.MAIN,
        methods.AGAINST,
        methods.PARTS_REMOVED,
        variants.ABLATION,
        *noise.EXHIBITS,
        cost.SPACE,
        cost.SPEED,
        cost.TIME,
        cost.COST,
        skew.SKEW,
        rounds.MOTIVATION,
        rounds.TRAJECTORY,
        pictures.EMBEDDING,
        pictures.UPLOADS,
        rounds.CONVERGENCE,
        cost.EFFICIENCY,
        variants.RANK,
        variants.BETA,
    )
}
RUN_STORES = tuple(dict.fromkeys(exhibit.store for exhibit in EXHIBITS.values()))
"""Files with rows of cells."""
STORES = (*RUN_STORES, "against", "curves")
"""All files with rows."""
