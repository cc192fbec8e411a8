"""Privacy against quality: what attacks on uploads find out, and how good a method still is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from unskew.report._entries import Entry, grouped, mapping, metric, number, text
from unskew.report._extras import Exposure, Privacy
from unskew.report._markdown import convert
from unskew.report._plots import Line, Mark, Plot, plot
from unskew.report.palette import Style, variant


def tradeoffs(studies: Sequence[Privacy], looks: Mapping[str, Style]) -> str:
    return "".join(_study(study, looks, f"privacy-{at}") for at, study in enumerate(studies, 1))


def by_noise(entries: Sequence[Entry]) -> str:
    """What noise costs: runs of one method that differ in its strength."""
    panels: list[str] = []
    for data, of_data in grouped(entries, "data").items():
        for protocol, alike in grouped(of_data, "protocol").items():
            lines = [
                Line(method, same[0].style, _by_noise(same))
                for method, same in grouped(alike, "method").items()
                if len({_noise(entry) for entry in same}) > 1
            ]
            axis = f"test NDCG@10 · ranked: {alike[0].ranking}"
            title = f"Noise against quality on {data}, {protocol} protocol"
            drawn = Plot(title, "strength of noise λ", axis, lines)
            panels += [plot(drawn, f"noise-{len(panels) + 1}")] if lines else []
    return f'<div class="panels">{"".join(panels)}</div>' if panels else ""


def _noise(entry: Entry) -> float:
    return number(mapping(entry.summary.get("privacy")).get("noise")) or 0.0


def _by_noise(entries: Sequence[Entry]) -> list[Mark]:
    marks = []
    for entry in sorted(entries, key=_noise):
        value = entry.figure("metrics", "ndcg@10").mean
        if value is not None:
            told = f"{entry.label}: noise λ {_noise(entry):g}, NDCG@10 {metric(value)}"
            marks.append(Mark(_noise(entry), value, told))
    return marks


def _study(study: Privacy, looks: Mapping[str, Style], key: str) -> str:
    lines = []
    for method in dict.fromkeys(dot.method for dot in study.dots):
        of_method = [dot for dot in study.dots if dot.method == method]
        single = [dot for dot in of_method if not dot.secure]
        sums = [dot for dot in of_method if dot.secure]
        lines.append(Line(method, looks[method], [_mark(dot) for dot in single]))
        hollow = variant(looks[method], 1)
        lines.append(Line(f"{method}, sums only", hollow, [_mark(dot) for dot in sums], False))
    drawn = Plot(
        f"Privacy against quality on {study.data}",
        "personal AUC of the strongest attack (0.5: nothing)",
        f"test NDCG@10 · {study.protocol} protocol",
        lines,
        note="Up and left is good: useful and silent. The server watches a whole run; a line joins "
        "growing strengths of noise λ; unjoined points: it sees sums only (secure "
        "aggregation).",
    )
    folded = (
        f'<details class="run"><summary>All attacks on {text(study.data)} as a table</summary>'
        f"{convert(study.table, key, f'Attacks on {study.data}')}</details>"
        if study.table
        else ""
    )
    return f'<div class="panels">{plot(drawn, f"{key}-plot")}</div>{folded}'


def _mark(dot: Exposure) -> Mark:
    told = f"noise {dot.noise}: AUC {dot.success:.3f}, NDCG@10 {metric(dot.quality)}"
    return Mark(dot.success, dot.quality, told)
