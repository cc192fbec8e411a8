"""Which column of a table holds the user, the item, the rating, the time and the title."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from unskew.types import UnskewError

ROLES = ("user", "item", "rating", "timestamp")

_ALIASES: Mapping[str, tuple[str, ...]] = {
    "user": (
        *("user", "userid", "uid", "username", "usr", "member", "memberid", "reviewer"),
        *("reviewerid", "customer", "customerid", "visitor", "visitorid", "session", "sessionid"),
    ),
    "item": (
        *("item", "itemid", "iid", "movie", "movieid", "mid", "film", "filmid", "artist"),
        *("artistid", "track", "trackid", "song", "songid", "book", "bookid", "isbn", "product"),
        *("productid", "asin", "parentasin", "article", "articleid", "business", "businessid"),
        *("game", "gameid", "poi", "poiid"),
    ),
    "rating": ("rating", "ratings", "score", "stars", "overall", "ratingvalue"),
    "timestamp": (
        *("timestamp", "time", "ts", "unixtime", "unixreviewtime", "datetime", "date"),
        *("createdat", "ratedat", "when"),
    ),
    "title": ("title", "name", "movietitle", "itemtitle", "itemname", "artistname"),
}


def find_columns(
    path: Path, names: Sequence[str], wanted: Mapping[str, str | None] | None
) -> dict[str, str]:
    """Role → column name. What ``wanted`` says holds; the rest is found by customary names. A role
    mapped to None, or to nothing on the command line, is left out on purpose."""
    chosen: dict[str, str] = {}
    wanted = {role: column or None for role, column in (wanted or {}).items()}
    for role, column in wanted.items():
        if role not in ROLES:
            raise UnskewError(
                f"columns={{{role!r}: ...}} names no known role; use {', '.join(ROLES)}"
            )
        if column is not None and column not in names:
            raise UnskewError(
                f"{path}, line 1: there is no column {column!r} for the {role}; "
                f"the file has {listed(names)}{_closest(column, names)}"
            )
        if column is not None:
            chosen[role] = column
    for role in ROLES:
        if role not in wanted:
            column = find_alias(role, [name for name in names if name not in chosen.values()])
            if column is not None:
                chosen[role] = column
    missing = [role for role in ("user", "item") if role not in chosen]
    if missing:
        raise UnskewError(_no_columns(path, names, missing))
    return chosen


def find_alias(role: str, names: Sequence[str]) -> str | None:
    """The column with a customary name for the role, best-known name first."""
    plain = {re.sub(r"[^a-z0-9]", "", name.lower()): name for name in reversed(names)}
    return next((plain[alias] for alias in _ALIASES[role] if alias in plain), None)


def listed(names: Sequence[str], most: int = 12) -> str:
    shown = ", ".join(repr(name[:40]) for name in names[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")


def _no_columns(path: Path, names: Sequence[str], missing: Sequence[str]) -> str:
    what = " and no ".join(f"{role} column" for role in missing)
    if all(re.fullmatch(r"\s*[-+.\deE]+\s*", name) for name in names):
        return (
            f"{path}, line 1: the first line holds numbers, not column names; "
            "add a header line such as user,item,rating,timestamp"
        )
    mapping = ", ".join(f'"{role}": "..."' for role in missing)
    return (
        f"{path}, line 1: no {what} among {listed(names)}; "
        f"rename the header or say which it is with columns={{{mapping}}}"
    )


def _closest(column: str, names: Sequence[str]) -> str:
    close = difflib.get_close_matches(column, names, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
