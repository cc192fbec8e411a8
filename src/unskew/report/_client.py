"""One client looked at closely: what it had, what was held out, what each run recommends."""

from __future__ import annotations

from collections.abc import Sequence

from unskew.report._charts import swatch
from unskew.report._entries import Entry, count, text
from unskew.report._extras import Client, Listing, Pick

FEW = 24
"""Items of a history shown at once; the others are folded."""
_HELD = {"test": "held out", "validation": "validation"}


def closely(client: Client, entries: Sequence[Entry]) -> str:
    """The section; runs in the order of the page."""
    of_run = {entry.number: entry for entry in entries}
    order = {entry.number: at for at, entry in enumerate(entries)}
    lists = sorted(client.lists, key=lambda listing: order[listing.run])
    boxes = "".join(_listing(client, listing, of_run[listing.run]) for listing in lists)
    return (
        f'<p class="note">Client <strong>{text(client.name)}</strong> of {text(client.data)}, '
        f"{text(client.why)}. This part of the page holds that client's interactions: the page is "
        "a file on this computer and sends nothing, but whoever gets the file can read them "
        "(<code>--no-client</code> leaves them out).</p>"
        f"{_history(client)}"
        '<p class="note">Ten best of all items the run did not train this client on; the rank of '
        "the held-out item is among those too, so it is not the rank of a protocol that samples "
        f'candidates.</p><div class="panels lists">{boxes}</div>'
    )


def _history(client: Client) -> str:
    titles = [f"<li>{text(title)}</li>" for title in client.history]
    shown, folded = titles[:FEW], titles[FEW:]
    more = ""
    if folded:
        more = (
            f'<details class="run"><summary>and {len(folded)} more</summary>'
            f'<ul class="chips">{"".join(folded)}</ul></details>'
        )
    held = "".join(
        f'<dt>{name}</dt><dd class="held">{_titles(titles)}</dd>'
        for name, titles in (
            ("Held out for testing", client.test),
            ("Held out for validation", client.validation),
        )
    )
    return (
        f'<div class="history"><h3>What it had <span class="sizes">{count(len(titles))} items to '
        f'train on, by title</span></h3><ul class="chips">{"".join(shown)}</ul>{more}'
        f"<dl>{held}</dl></div>"
    )


def _titles(titles: Sequence[str]) -> str:
    return "; ".join(text(title) for title in titles) or "nothing"


def _listing(client: Client, listing: Listing, entry: Entry) -> str:
    tag = ' <span class="tag">leaks</span>' if entry.leaky else ""
    picks = "".join(_pick(pick) for pick in listing.picks)
    ranks = "; ".join(_rank(title, rank, client) for title, rank in listing.test)
    found = (
        f"{ranks} of {count(listing.among)}."
        if listing.test
        else "Nothing was held out for this client."
    )
    return (
        f'<figure class="picks"><h4><span class="name">{swatch(entry.style)}<span>'
        f"{text(entry.label)}</span></span> "
        f'<span class="protocol"><code>{text(entry.protocol)}</code>{tag}</span></h4>'
        f"<ol>{picks}</ol><figcaption>{found}</figcaption></figure>"
    )


def _pick(pick: Pick) -> str:
    if not pick.held:
        return f"<li>{text(pick.title)}</li>"
    mark = _HELD.get(pick.held, pick.held)
    return f'<li class="hit {text(pick.held)}">{text(pick.title)} <b>{text(mark)}</b></li>'


def _rank(title: str, rank: int, client: Client) -> str:
    """The item is named only where it is another than the one above the lists."""
    name = "The held-out item" if [title] == list(client.test) else text(title)
    return f"{name}: rank <strong>{count(rank)}</strong>"
