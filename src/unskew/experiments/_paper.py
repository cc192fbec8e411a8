"""Figures the PFedCLR paper prints, to stand beside ours."""

from __future__ import annotations

DATASETS = ("filmtrust", "ml-100k", "ml-1m", "lastfm-2k")
"""The paper's data sets that can be had here; HetRec2011 needs its own download."""

_COLUMNS = ("filmtrust", "ml-100k", "ml-1m", "hetrec2011", "lastfm-2k")

_MAIN = {
    "mf": ".6886 .5548 .6543 .3788 .6088 .3446 .6275 .3688 .8440 .6191",
    "ncf": ".6786 .5437 .6119 .3422 .5858 .3267 .6171 .3663 .7896 .6069",
    "lightgcn": ".6956 .5691 .6787 .3994 .6684 .3885 .6611 .3975 .8448 .6853",
    "fedmf": ".6507 .5171 .4846 .2723 .4876 .2734 .5376 .3206 .5839 .3930",
    "fedncf": ".6497 .5331 .4252 .2290 .4180 .2311 .5083 .2982 .4933 .3220",
    "pfedgraph": ".6956 .4982 .6204 .4937 .7262 .5991 .6962 .5523 .6485 .6085",
    "gpfedrec": ".6866 .5578 .6840 .3982 .6836 .4012 .6488 .4016 .7896 .6499",
    "pfedrec": ".6896 .5479 .6702 .3929 .6611 .3849 .6531 .3948 .7549 .6634",
    "fedrap": ".6826 .4628 .8823 .7980 .8661 .7666 .8486 .6325 .6257 .5924",
    "pfedclr": ".9102 .7798 .9989 .9225 .9603 .8402 .9522 .8496 .7778 .7164",
    "fedmf-af": ".6717 .5429 .6151 .4307 .5897 .4007 .6947 .5024 .6612 .4600",
}


def paper_value(method: str, data: str) -> tuple[float, float] | None:
    """HR@10 and NDCG@10 in the paper's main table (AF: its ablation table), if it has them."""
    if method not in _MAIN or data not in _COLUMNS:
        return None
    figures = [float(figure) for figure in _MAIN[method].split()]
    at = 2 * _COLUMNS.index(data)
    return figures[at], figures[at + 1]
