"""docs/results.md, made from committed rows alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from unskew.experiments._against import DATA as ORDER
from unskew.experiments._against import against_table
from unskew.experiments._parts import parts_table
from unskew.experiments._reproduce import main_table
from unskew.methods import METHODS

Row = dict[str, Any]


def document(main: Sequence[Row], against: Sequence[Row], parts: Sequence[Row]) -> str:
    """The whole page."""
    rows = in_order(main)
    defaults = [row for row in rows if not row["settings"]]
    commands = "\n".join(row["command"] for row in (*rows, *parts))
    sections = [
        f"""# Results

Made by `unskew reproduce` from the rows in `results/`; do not edit by hand. Every figure is taken
at the round with the best validation NDCG@10; mean ± standard deviation over seeds where there are
several, one seed where no deviation stands.

## Protocol `paper`

HR@10 / NDCG@10 among 99 sampled candidates, and in brackets what the PFedCLR paper prints. These
figures leak the held-out item ([protocols.md](protocols.md)).

{main_table(defaults, "paper")}

## Protocol `leak-free`

HR@10 / NDCG@10 ranking all unseen items · the same among 99 sampled candidates.

{main_table(defaults, "leak-free")}
""",
    ]
    if any(row["protocol"] == "time" for row in rows):
        sections.append(f"""## Protocol `time`

One moment for everybody, nothing after it in training; otherwise as `leak-free`.

{main_table(defaults, "time")}
""")
    if against:
        sections.append(f"""## FedRefit against every other method

`leak-free`, all unseen items ranked, NDCG@10. Paired Wilcoxon test over users on values averaged
over seeds (in brackets how many), Holm's correction within a data set; intervals by bootstrap.

{against_table(_by_data(against), "leak-free")}
""")
    if parts:
        sections.append(f"""## FedRefit, each part removed in turn

`leak-free`, all unseen items ranked, NDCG@10 ([fedrefit.md](fedrefit.md)).

{parts_table(_by_data(parts))}
""")
    sections.append(f"""## Commands

```
{commands}
```
""")
    return "\n".join(sections)


def in_order(rows: Sequence[Row]) -> list[Row]:
    """By method as registered, then by data set."""
    order = list(METHODS)
    known = [row for row in _by_data(rows) if row["method"] in order]
    return sorted(known, key=lambda row: order.index(row["method"]))


def _by_data(rows: Sequence[Row]) -> list[Row]:
    def place(row: Row) -> int:
        return ORDER.index(row["data"]) if row["data"] in ORDER else len(ORDER)

    return sorted(rows, key=place)
