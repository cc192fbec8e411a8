"""The parts of the page below the table: charts by data set, cost bars, how each run was made."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from unskew.report._charts import panel, swatch
from unskew.report._entries import (
    DASH,
    Entry,
    amount,
    count,
    grouped,
    mapping,
    sequence,
    text,
)


def learning_curves(entries: Sequence[Entry]) -> str:
    """A panel per data set and protocol; empty where no run recorded its rounds."""
    parts, number = [], 0
    for data, of_data in grouped(entries, "data").items():
        panels: list[str] = []
        for of_protocol in grouped(of_data, "protocol").values():
            number += 1
            panels += filter(None, [panel(of_protocol, f"chart-{number}")])
        if not panels:
            continue
        rankings = {entry.ranking for entry in of_data}
        warning = (
            '<p class="note">The panels have axes of their own: they rank different sets of items, '
            "so heights compare within a panel, not across.</p>"
            if len(rankings) > 1 and len(panels) > 1
            else ""
        )
        sizes = f"{_sizes(of_data, 'users')} users, {_sizes(of_data, 'items')} items"
        parts.append(
            f'<h3>{text(data)} <span class="sizes">{sizes}</span></h3>{warning}'
            f'<div class="panels">{"".join(panels)}</div>'
        )
    return "".join(parts)


def _sizes(entries: Sequence[Entry], key: str) -> str:
    """One size, or the several that the protocols leave."""
    return " / ".join(dict.fromkeys(count(entry.value(key)) for entry in entries))


MANY = 12
"""With more runs than that, bars show one protocol's only, and origins are folded by data set."""

_COSTS: tuple[tuple[str, Callable[[Entry], float | None]], ...] = (
    ("Seconds per simulated round", lambda e: e.value("seconds_per_round")),
    ("KB up per client and round", lambda e: e.kilobytes("bytes_up")),
    ("KB down per client and round", lambda e: e.kilobytes("bytes_down")),
)


def cost_bars(entries: Sequence[Entry]) -> str:
    parts = []
    for data, of_data in grouped(entries, "data").items():
        protocols = grouped(of_data, "protocol")
        shown, note = of_data, ""
        if len(protocols) > 1 and len(of_data) > MANY:
            name, shown = max(protocols.items(), key=lambda part: len(part[1]))
            note = f' <span class="sizes"><code>{text(name)}</code>, the others as above</span>'
        several = len(grouped(shown, "protocol")) > 1
        figures = "".join(_bars(name, value, shown, several) for name, value in _COSTS)
        parts.append(f'<h3>{text(data)}{note}</h3><div class="panels thirds">{figures}</div>')
    return "".join(parts)


def _bars(
    name: str, value: Callable[[Entry], float | None], entries: Sequence[Entry], several: bool
) -> str:
    longest = max((value(entry) or 0.0 for entry in entries), default=0.0) or 1.0
    rows = []
    for entry in entries:
        amount_of = value(entry)
        protocol = f' <span class="protocol">{text(entry.protocol)}</span>' if several else ""
        rows.append(
            f'<li><span class="name">{swatch(entry.style)}<span>{text(entry.label)}{protocol}'
            '</span></span><svg class="bar" viewBox="0 0 100 10" preserveAspectRatio="none" '
            f'aria-hidden="true"><rect class="rail" width="100" height="10"/><rect class="mark" '
            f'width="{(amount_of or 0.0) / longest * 100:.2f}" height="10" '
            f'fill="{entry.style.colour}"/></svg>'
            f'<span class="number">{amount(amount_of)}</span></li>'
        )
    head = f"<figcaption>{text(name)}</figcaption>"
    return f'<figure class="cost">{head}<ul>{"".join(rows)}</ul></figure>'


def provenance(entries: Sequence[Entry], commands: Sequence[str] = ()) -> str:
    parts = ["".join(_run(entry) for entry in entries)]
    if len(entries) > MANY:
        parts = [
            f'<details class="group"><summary>{text(data)}: {len(of_data)} runs</summary>'
            f"{''.join(_run(entry) for entry in of_data)}</details>"
            for data, of_data in grouped(entries, "data").items()
        ]
    if commands:
        lines = "\n".join(text(command) for command in commands)
        parts.append(
            f'<details class="run commands"><summary>All {len(commands)} commands behind this page'
            f'</summary><pre tabindex="0"><code>{lines}</code></pre></details>'
        )
    return "".join(parts)


def _run(entry: Entry) -> str:
    summary = entry.summary
    facts = [
        ("Settings", _pairs(summary.get("settings")) or "the method's defaults"),
        ("Versions", _pairs(summary.get("versions")) or DASH),
        ("Seeds", _list(summary.get("seeds"))),
        ("Best validation round per seed", _list(summary.get("best_rounds"))),
        ("Users, items", f"{count(entry.value('users'))}, {count(entry.value('items'))}"),
        ("Peak memory of the process", _with_unit(entry.value("peak_rss_mb"), "MB")),
        ("Model checksum per seed (SHA-256)", _list(_checksums(summary), code=True)),
        ("Run folder", _folder(summary.get("run_dir"))),
    ]
    rows = "".join(f"<dt>{text(name)}</dt><dd>{shown}</dd>" for name, shown in facts)
    command = summary.get("command")
    shown = (
        f'<pre tabindex="0"><code>{text(command)}</code></pre>'
        if command
        else "<p>No command: the run was started from Python.</p>"
    )
    notes = "".join(f"<li>{text(note)}</li>" for note in sequence(summary.get("notes")))
    return (
        f'<details class="run"><summary><span class="name">{swatch(entry.style)}<span>'
        f"{text(entry.label)} · {text(entry.data)} · {text(entry.protocol)}</span></span></summary>"
        f"{shown}<dl>{rows}</dl>"
        + (
            f"<p>Notes on the data:</p><ul>{notes}</ul>"
            if notes
            else "<p>No notes on the data.</p>"
        )
        + "</details>"
    )


def _checksums(summary: Mapping[str, Any]) -> Any:
    """One per seed; the run's own where it has no others."""
    known = summary.get("model_sha256_per_seed") or summary.get("model_sha256")
    return [known] if isinstance(known, str) else known


def _pairs(values: Any) -> str:
    return ", ".join(f"<code>{text(k)} = {text(v)}</code>" for k, v in mapping(values).items())


def _list(values: Any, code: bool = False) -> str:
    items = [DASH if value is None else text(value) for value in sequence(values)]
    return ", ".join(f"<code>{item}</code>" if code else item for item in items) or DASH


def _with_unit(value: float | None, unit: str) -> str:
    return DASH if value is None else f"{count(value)} {unit}"


def _folder(path: Any) -> str:
    """Its name only: where it stands on somebody's disk is nobody else's business."""
    names = [name for name in re.split(r"[/\\]", str(path or "")) if name]
    return text(names[-1]) if names else "not saved"
