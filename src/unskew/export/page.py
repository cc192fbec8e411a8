"""The web form of a model: one HTML file that recommends in the browser and requests nothing."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unskew.display.palette import style_of
from unskew.export.tables import Codes, Prepared
from unskew.kernels.history_network import EPSILON, GROUPS, decay_factors, unpack
from unskew.methods.newcomers import Arithmetic, DecayedFactors, HistoryNetwork
from unskew.report import html_page

_TYPES = {"float32": "f4", "float16": "f2", "int8": "i1", "uint16": "u2", "int32": "i4"}
"""Names of array types in the page's data."""


class Contents(NamedTuple):
    """What the page shows beside the model."""

    method: str
    data: str
    about: Sequence[tuple[str, str]]
    """Facts on the model, each with its name."""
    labels: Sequence[str]
    titles: Sequence[str]
    users: Sequence[int]
    """Number of users of each item in training."""
    n_users: int
    k: int
    """Length of the list of recommendations."""
    federated: bool
    bytes_up: float
    """Bytes that a client sent per round in training, on average."""
    noise: bool = False
    """Whether noise was added to uploads in training."""


def render_page(prepared: Prepared, contents: Contents) -> str:
    """The page's HTML; the same input always gives the same text."""
    arrays, numbers = _parts(prepared.arithmetic)
    layout, packed = _pack(prepared, arrays)
    order = len(arrays.get("decays", ())) > 0 or set(numbers.get("rates", ())) - {1.0}
    model: dict[str, Any] = {
        "kind": type(prepared.arithmetic).__name__,
        "arrays": layout,
        **numbers,
        "order": bool(order),
        "method": contents.method,
        "labels": list(contents.labels),
        "titles": None if contents.titles == contents.labels else list(contents.titles),
        "users": list(contents.users),
        "nUsers": contents.n_users,
        "k": contents.k,
        "federated": contents.federated,
        "bytesUp": contents.bytes_up,
        "noise": contents.noise,
    }
    about = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in contents.about
    )
    body = (
        _asset("page.html")
        .replace("{method}", escape(contents.method))
        .replace("{data}", escape(contents.data))
        .replace("{about}", about)
    )
    data = (
        f'<script type="application/json" id="model">{_inline(model)}</script>\n'
        f'<script type="text/plain" id="tables">{packed}</script>\n'
    )
    plus, minus = style_of("pfedclr").colour, style_of("fedmf").colour
    style = f":root {{ --plus: {plus}; --minus: {minus}; }}\n{_asset('page.css')}"
    script = _asset("model.js") + _asset("page.js")
    return html_page("Recommendations on your device", body + data, script, style)


def _parts(model: Arithmetic) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Arrays and numbers of a model, by the names that the page's script uses."""
    if isinstance(model, HistoryNetwork):
        arrays, numbers = _parts(model.refit)
        d = model.R.shape[1] - 1
        arrays |= {"R": model.R}
        if d > 0:
            weights = unpack(model.net, d)._asdict()
            factors = decay_factors(weights.pop("decay_logits"))
            arrays |= {**weights, "factors": factors}
        tau = float(model.net[-1])
        return arrays, numbers | {
            "scale": model.scale,
            "tau": tau,
            "epsilon": float(EPSILON),
            "groups": GROUPS,
        }
    values = model._asdict()
    numbers = {}
    if "fading" in values:
        fading = values.pop("fading")
        numbers = {"rates": fading.rates.tolist(), "shares": fading.shares.tolist()}
    if isinstance(model, DecayedFactors):
        names = {"horizon": "horizon", "backward": "backward", "network_follows": "networkFollows"}
        numbers = {script: values.pop(name) for name, script in names.items()}
    return values, numbers


def _pack(prepared: Prepared, arrays: dict[str, NDArray[Any]]) -> tuple[list[Any], str]:
    """Where each array lies, and all arrays as compressed base64 text."""
    layout, raw = [], b""
    stored: list[tuple[str, NDArray[Any]]] = []
    for name, array in arrays.items():
        form = prepared.smallest(array)
        if isinstance(form, Codes):
            stored += [(name, form.whole), (f"{name}.rows", form.rows)]
            stored += [(f"{name}.columns", form.columns)]
        else:
            stored.append((name, form))
    for name, array in stored:
        layout.append([name, _TYPES[array.dtype.name], len(raw), list(array.shape)])
        part = array.astype(array.dtype.newbyteorder("<")).tobytes()
        if array.dtype == np.float16:  # all low bytes, then all high ones: compresses better
            part = part[::2] + part[1::2]
        raw += part + bytes(-len(part) % 4)  # typed arrays begin at multiples of their item size
    return layout, base64.b64encode(zlib.compress(raw, 9)).decode()


def _inline(value: Any) -> str:
    """JSON that can stand in an HTML script: no character of it opens or closes a tag."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _asset(name: str) -> str:
    return files("unskew.export").joinpath(name).read_text(encoding="utf-8")
