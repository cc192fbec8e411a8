"""Tables and figures from made rows, and which cells count as run. Nothing is trained here."""

import json

import pytest

from unskew.experiments import TABLES, Cell, document, fingerprint, missing, read_rows
from unskew.experiments import _reproduce as cells_module
from unskew.experiments.tables import (
    STORES,
    Plan,
    ablation,
    convergence,
    space,
)
from unskew.experiments.tables.datasets import PUBLISHED
from unskew.experiments.tables.ldp import TABLES as LDP
from unskew.files import append_json_line
from unskew.methods import METHODS
from unskew.report import draw_svg

NAMES = [
    "datasets",
    "main",
    "against",
    "parts",
    "ablation",
    "ldp",
    "ldp-methods",
    "ldp-noise",
    "space",
    "time",
    "cost",
    "skew",
    "motivation",
    "trajectory",
    "embedding",
    "uploads",
    "convergence",
    "efficiency",
    "rank",
    "beta",
]


def summary(value):
    return {"mean": value, "std": 0.0, "values": [value]}


def row(method, hr, data="filmtrust", protocol="paper", settings=None, **more):
    metrics = {"hr@10": summary(hr), "ndcg@10": summary(hr / 2)}
    settings = settings or {}
    pairs = tuple((key, str(value)) for key, value in settings.items())
    return {
        "method": method,
        "data": data,
        "protocol": protocol,
        "settings": settings,
        "seeds": [0],
        "metrics": metrics,
        "sampled99": metrics,
        "users": 1002,
        "items": 2042,
        "seconds_per_round": 0.25,
        "peak_rss_mb": 321.0,
        "bytes_up": 10250.0,
        "bytes_down": 130688.0,
        "command": Cell(method, data, protocol, (0,), pairs).command,
    } | more


def stores(**given):
    return {name: given.get(name, []) for name in STORES}


def curves(values):
    return {part: dict.fromkeys(("hr@10", "ndcg@10"), values) for part in ("validation", "test")}


def line_of(text, start):
    return next(line for line in text.splitlines() if line.startswith(f"| {start} |"))


def test_every_name_of_the_paper_is_there():
    assert sorted(TABLES) == sorted([*NAMES, "speed"])


@pytest.mark.parametrize("name", NAMES)
def test_cells_are_distinct_commands_with_settings_that_exist(name):
    plan = Plan(data=("demo",), seeds=(0,))
    cells = list(TABLES[name].cells(plan))
    assert cells
    assert len({cell.command for cell in cells}) == len(cells)
    for cell in cells:
        if isinstance(cell, Cell):
            known = {*METHODS[cell.method].Config.__dataclass_fields__, "ldp-noise"}
            assert {key for key, _ in cell.settings} <= known


def test_only_a_quick_run_is_cut_short_and_tables_have_whole_ones():
    plans = (Plan(data=("ml-1m",), quick=quick) for quick in (True, False))
    short, whole = (plan.cell("gpfedrec", "ml-1m", "paper") for plan in plans)
    assert [key for key, _ in short.settings] == ["rounds"]
    assert whole.settings == ()
    cut = row("gpfedrec", 0.6, "ml-1m", settings={"rounds": 30}, rounds=30)
    assert "0.600" not in TABLES["main"].markdown(stores(main=[row("gpfedrec", 0.5), cut]))


@pytest.mark.parametrize("name", NAMES)
def test_without_rows_there_is_no_table_and_no_chart(name):
    table = TABLES[name]
    assert table.markdown is None or table.markdown(stores()) == ""
    assert table.charts is None or table.charts(stores()) == {}


@pytest.mark.parametrize("data", PUBLISHED)
@pytest.mark.parametrize(
    "method", ["fedmf", "fedncf", "pfedgraph", "gpfedrec", "pfedrec", "fedrap", "pfedclr"]
)
def test_space_is_counted_as_the_paper_counts(method, data):
    n_users, n_items = space.COUNTED.get(data, PUBLISHED[data][:2])
    ours, theirs = space.megabytes(method, n_users, n_items), space.published(method, data)
    assert ours == pytest.approx(theirs, rel=1e-3)  # four digits are printed


def test_space_stands_beside_the_papers_and_what_was_measured():
    sources = [{"data": "filmtrust", "n_users": 1002, "n_items": 2042}]
    text = TABLES["space"].markdown(stores(datasets=sources, main=[row("pfedclr", 0.9)]))
    assert "0.1404 (0.1404)" in text
    assert "| pfedclr | 321 |" in text


def test_the_ablation_says_whether_the_papers_order_holds():
    kinds = list(ablation.VARIANTS.values())
    rising = [
        row(m, hr, settings=s) for (m, s), hr in zip(kinds, (0.6, 0.7, 0.8, 0.9), strict=True)
    ]
    text = TABLES["ablation"].markdown(stores(main=rising))
    assert "| FedMF w/ CF | 0.800 (0.775) / 0.400 (0.631) |" in text
    assert "FedMF < AF < CF < CLR, as in the paper" in text
    falling = [{**one, "protocol": "leak-free"} for one in rising]
    falling[3] = row("pfedclr", 0.1, protocol="leak-free")
    text = TABLES["ablation"].markdown(stores(main=falling))
    assert "CLR < FedMF < AF < CF, not the paper's" in text
    assert "0.775" not in text, "the paper has no leak-free figures"


def test_settings_and_noise_keep_out_of_tables_of_methods_as_they_come():
    rows = [row("pfedclr", 0.9), row("pfedclr", 0.1, settings={"rank": 4})]
    for name in ("main", "time"):
        text = TABLES[name].markdown(stores(main=rows))
        assert "0.100" not in text
    assert "0.25 (0.6337)" in TABLES["time"].markdown(stores(main=rows))
    assert "10.2 / 130.7" in TABLES["cost"].markdown(stores(main=rows))


def test_noise_stands_beside_none():
    plain = [row("pfedclr", 0.9), row("fedmf", 0.7)]
    noisy = [
        row(method, hr, privacy={"noise": 0.5}, command=f"unskew run {method} --ldp-noise=0.5")
        for method, hr in (("pfedclr", 0.8), ("fedmf", 0.6))
    ]
    for table in LDP:
        text = table.markdown(stores(main=plain, ldp=noisy))
        assert "0.9000 (0.9102)" in text
        assert "0.8000 (0.9122)" in text
        alone = table.markdown(stores(main=plain, ldp=noisy[:1]))
        assert ("0.8000" in alone) == (table.name != "ldp-methods"), "one is no comparison"


def test_variants_are_compared_on_the_seeds_they_share():
    several = {
        "mean": 0.6,
        "std": 0.2,
        "values": [0.8, 0.4],
    }
    metrics = {"hr@10": several, "ndcg@10": several}
    whole = row("pfedclr", 0.6, seeds=[0, 1], metrics=metrics, sampled99=metrics)
    noisy = row("pfedclr", 0.6, privacy={"noise": 0.5}, command="unskew run --ldp-noise=0.5")
    (ldp, _, by_strength), rank = LDP, row("pfedclr", 0.7, settings={"rank": 8})
    assert "| 0.8000 (0.9102) | 0.6000 (0.9122) | -25.00%" in ldp.markdown(
        stores(main=[whole], ldp=[noisy])
    )
    assert "| 0.8000 (0.9102) |" in by_strength.markdown(stores(main=[whole], ldp=[noisy]))
    assert "| 0.800 | 0.700 |" in TABLES["rank"].markdown(stores(main=[whole], rank=[rank]))
    full = row("pfedclr", 0.7, settings={"buffer": "full"})
    assert "0.800 (0.910)" in TABLES["ablation"].markdown(stores(main=[whole], ablation=[full]))
    later = full | {"seeds": [7]}
    assert "0.600 (0.910)" in TABLES["ablation"].markdown(stores(main=[whole], ablation=[later]))


@pytest.mark.parametrize(
    ("name", "setting", "values"), [("rank", "rank", (1, 8)), ("beta", "buffer_rate", (0.1, 0.0))]
)
def test_a_sweep_has_the_default_among_its_values(name, setting, values):
    swept = [row("pfedclr", 0.5 + at / 10, settings={setting: v}) for at, v in enumerate(values)]
    known = stores(main=[row("pfedclr", 0.9)], **{name: swept})
    line = line_of(TABLES[name].markdown(known), "filmtrust | HR@10")
    assert sorted(line.replace("|", " ").split()[2:]) == ["0.500", "0.600", "0.900"]
    panel = TABLES[name].charts(known)[f"{name}-paper"].panels[0]
    assert len(panel.names) == 3
    assert {tuple(sorted(series.y)) for series in panel.series} == {
        (0.5, 0.6, 0.9),
        (0.25, 0.3, 0.45),
    }
    assert (panel.right is not None) == (name == "rank")


def test_convergence_counts_rounds_and_draws_a_line_per_method():
    assert convergence.rounds_to([0.1, 0.94, 0.951, 1.0, 0.2]) == 3
    both = [row(m, 0.5, curves=curves([0.1, 0.4, 0.5])) for m in ("fedmf", "pfedclr")]
    other = row("fedmf", 0.5, settings={"aggregate_from": 9}, curves=curves([0.9]))
    known = stores(curves=[*both, other])
    assert "| fedmf | 3 / 3 |" in TABLES["convergence"].markdown(known)
    chart = TABLES["convergence"].charts(known)["convergence-paper"]
    assert [series.label for series in chart.panels[0].series] == ["pfedclr", "fedmf"]


def test_motivation_shows_both_ends_of_training():
    runs = [
        row("fedmf", 0.5, settings={"rounds": 140, "aggregate_from": first}, curves=curves(values))
        for first, values in ((0, [0.2] * 100 + [0.7] * 40), (1, [0.5] * 140))
    ]
    text = TABLES["motivation"].markdown(stores(curves=runs))
    alone = line_of(text, "filmtrust | paper | LT w/o GA")
    assert alone.count("0.200") == 4
    assert alone.count("0.700") == 4
    chart = TABLES["motivation"].charts(stores(curves=runs))["motivation-filmtrust-paper"]
    assert [series.label for series in chart.panels[0].series] == ["LT w/o GA", "w/ GA (1-)"]


def test_a_bubble_is_as_large_as_its_round_is_long():
    rows = [row("fedmf", 0.5, seconds_per_round=1.0), row("pfedclr", 0.9, seconds_per_round=4.0)]
    chart = TABLES["efficiency"].charts(stores(main=rows))["efficiency-paper"]
    sizes = {series.key: list(series.sizes) for series in chart.panels[0].series}
    assert sizes == {"fedmf": [0.25], "pfedclr": [1.0]}


def test_charts_become_files_that_do_not_change():
    both = [row(m, 0.5, curves=curves([0.1, 0.4, 0.5])) for m in ("fedmf", "pfedclr")]
    chart = TABLES["convergence"].charts(stores(curves=both))["convergence-paper"]
    assert draw_svg(chart) == draw_svg(chart)
    assert ">pfedclr</text>" in draw_svg(chart), "text stays text"


def test_the_document_has_a_section_per_table_with_rows_and_marks_quick_ones():
    known = stores(main=[row("pfedclr", 0.9)])
    text = document(known, {"convergence": ["figures/convergence-paper.svg"]})
    assert "## Methods compared\n" in text
    assert "## Rank" not in text
    assert "![Convergence](figures/convergence-paper.svg)" in text
    assert known["main"][0]["command"] in text
    assert "quick" not in text.lower()
    assert "## Methods compared (quick)" in document(known, quick=True)


def test_a_row_counts_unless_its_methods_code_has_changed():
    cell = Cell("fedmf", "demo", "paper", (0,))
    bare = {"command": cell.command, "seeds": [0]}
    assert missing([cell, cell], []) == [cell]
    assert missing([cell], [bare]) == [], "rows that do not say which code made them count"
    assert missing([cell], [bare | {"source": fingerprint("fedmf")}]) == []
    assert missing([cell], [bare | {"source": fingerprint("pfedclr")}]) == [cell]


def test_words_are_not_code(tmp_path):
    code = 'def f(x):\n    """Doc."""\n    return x\n'
    texts = [
        code,
        code.replace("Doc", "Other"),
        f"# why\n\n{code}",
        f"PRESETS: dict = {{\n    1: 2,\n}}\n{code}",
        code.replace("return x", "return 0"),
    ]
    bare = []
    for at, text in enumerate(texts):
        path = tmp_path / f"{at}.py"
        path.write_text(text)
        bare.append(cells_module._bare(path))
    assert bare[0] == bare[1] == bare[2] == bare[3]
    assert bare[4] != bare[0]


def test_what_a_method_shares_is_part_of_its_code():
    names = {path.name for path in cells_module._sources("unskew.methods.fedmf_af")}
    assert names == {"fedmf_af.py", "fedmf.py", "_training.py"}


def test_a_line_cut_short_is_no_row_and_spoils_none(tmp_path):
    path = tmp_path / "rows.jsonl"
    append_json_line(path, {"command": "a", "n": 1})
    with path.open("a") as file:
        file.write('{"command": "b", "n')
    assert [one["command"] for one in read_rows(path)] == ["a"]
    append_json_line(path, {"command": "c"})
    append_json_line(path, {"command": "a", "n": 2})
    append_json_line(path, {"command": "a", "n": 3, "quick": True})
    rows = read_rows(path)
    assert [(one["command"], one.get("n")) for one in rows] == [("a", 2), ("c", None), ("a", 3)]
    assert json.loads(path.read_text().splitlines()[-1])["quick"]
