"""Tables and charts from made rows. Nothing is trained here."""

import pytest
from paper_samples import run_row as row

from unskew.display import to_markdown
from unskew.paper import EXHIBITS, Plan, Results, document, published
from unskew.paper.cost import parameter_megabytes
from unskew.paper.document import fill_readme
from unskew.paper.methods import side_by_side
from unskew.paper.noise import EXHIBITS as LDP
from unskew.paper.plan import cell_identity, command_of
from unskew.paper.rounds import rounds_to
from unskew.paper.variants import VARIANTS
from unskew.types import UnskewError

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


def stores(**given):
    return Results.from_records(given)


def text_of(name, results):
    return "\n\n".join(to_markdown(table) for table in EXHIBITS[name].tables(results))


def curves(values):
    return {part: dict.fromkeys(("hr@10", "ndcg@10"), values) for part in ("validation", "test")}


def line_of(text, start):
    return next(line for line in text.splitlines() if line.startswith(f"| {start} |"))


def test_every_name_of_the_paper_is_there():
    assert sorted(EXHIBITS) == sorted([*NAMES, "speed", "budget"])


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_cells_are_distinct(name, quick):
    cells = list(EXHIBITS[name].cells(Plan(data=("demo",), seeds=(0,), quick=quick)))
    assert cells
    assert len({cell_identity(cell) for cell in cells}) == len(cells)
    assert len({command_of(cell) for cell in cells}) == len(cells)


def test_a_shortened_run_is_in_no_table_of_default_runs():
    cut = row("gpfedrec", 0.6, "ml-1m", settings={"rounds": 30})
    assert "0.600" not in text_of("main", stores(main=[row("gpfedrec", 0.5), cut]))


@pytest.mark.parametrize("name", NAMES)
def test_without_rows_there_is_no_table_and_no_chart(name):
    assert EXHIBITS[name].tables(stores()) == []
    assert EXHIBITS[name].charts(stores()) == {}


@pytest.mark.parametrize("data", published.figures()["datasets"])
@pytest.mark.parametrize(
    "method", ["fedmf", "fedncf", "pfedgraph", "gpfedrec", "pfedrec", "fedrap", "pfedclr"]
)
def test_space_is_counted_as_the_paper_counts(method, data):
    counted = published.figures()["megabytes_counted"]
    n_users, n_items = counted.get(data, published.dataset_size(data)[:2])
    ours = parameter_megabytes(method, n_users, n_items)
    theirs = published.pair("megabytes", method, data)
    assert ours == pytest.approx(theirs, rel=1e-3)  # four digits are printed


def test_space_stands_beside_the_papers_and_what_was_measured():
    sources = [{"command": "", "data": "filmtrust", "n_users": 1002, "n_items": 2042}]
    text = text_of("space", stores(datasets=sources, main=[row("pfedclr", 0.9)]))
    assert "0.1404 (0.1404)" in text
    assert "| pfedclr | 321 |" in text


def test_the_ablation_says_whether_the_papers_order_holds():
    kinds = list(VARIANTS.values())
    rising = [
        row(m, hr, settings=s) for (m, s), hr in zip(kinds, (0.6, 0.7, 0.8, 0.9), strict=True)
    ]
    text = text_of("ablation", stores(main=rising))
    assert "| FedMF w/ CF | 0.800 (0.775) / 0.400 (0.631) |" in text
    assert "FedMF < AF < CF < CLR, as in the paper" in text
    falling = [{**one, "protocol": "leak-free"} for one in rising]
    falling[3] = row("pfedclr", 0.1, protocol="leak-free")
    text = text_of("ablation", stores(main=falling))
    assert "CLR < FedMF < AF < CF, not the paper's" in text
    assert "0.775" not in text, "the paper has no leak-free figures"


def test_settings_and_noise_keep_out_of_tables_of_methods_as_they_come():
    rows = [row("pfedclr", 0.9), row("pfedclr", 0.1, settings={"rank": 4})]
    for name in ("main", "time"):
        text = text_of(name, stores(main=rows))
        assert "0.100" not in text
    assert "0.25 (0.6337)" in text_of("time", stores(main=rows))
    assert "10.2 / 130.7" in text_of("cost", stores(main=rows))


def test_traffic_of_a_whole_training_is_in_megabytes_per_device():
    sent = {"total_bytes_up": 1.5e6, "total_bytes_down": 42e6, "rounds": 208}
    counted = row("fednext", 0.3, protocol="sequential", **sent)
    text = text_of("cost", stores(main=[counted, row("fedmf", 0.2)]))
    assert "| fednext | 1.50 / 42 in 208 rounds |" in text


def test_more_rounds_stand_beside_what_a_device_sends():
    def trained(n, hr, **settings):
        sent = {"total_bytes_up": n * 1e4, "total_bytes_down": n * 1e5}
        about = {"data": "ml-1m", "protocol": "sequential", "settings": settings}
        return row("fednext", hr, rounds=n, **about, **sent)

    short, whole = trained(108, 0.2, rounds=108), trained(1000, 0.3)
    other = trained(500, 0.9, dim=64)
    known = stores(main=[whole, other], budget=[short])
    text = text_of("budget", known)
    assert "| ml-1m | 108 | 0.200 | 0.100 | 1.1 | 10.8 |" in text
    assert "0.900" not in text, "other settings are no budget"
    by_rounds, by_bytes = EXHIBITS["budget"].charts(known)["budget"].panels
    assert [list(panel.series[0].x) for panel in (by_rounds, by_bytes)] == [[108, 1000], [1.08, 10]]
    assert text_of("budget", stores(main=[whole])) == "", "one number of rounds is no comparison"


def test_noise_stands_beside_none():
    plain = [row("pfedclr", 0.9), row("fedmf", 0.7)]
    noisy = [row(method, hr, noise=0.5) for method, hr in (("pfedclr", 0.8), ("fedmf", 0.6))]
    for table in LDP:
        text = text_of(table.name, stores(main=plain, ldp=noisy))
        assert "0.9000 (0.9102)" in text
        assert "0.8000 (0.9122)" in text
        alone = text_of(table.name, stores(main=plain, ldp=noisy[:1]))
        assert ("0.8000" in alone) == (table.name != "ldp-methods"), "one is no comparison"


def test_variants_are_compared_on_the_seeds_they_share():
    several = {
        "mean": 0.6,
        "std": 0.2,
        "values": [0.8, 0.4],
    }
    metrics = {"hr@10": several, "ndcg@10": several}
    whole = row("pfedclr", 0.6, seeds=[0, 1], metrics=metrics, sampled99=metrics)
    noisy = row("pfedclr", 0.6, noise=0.5)
    rank = row("pfedclr", 0.7, settings={"rank": 8})
    assert "| 0.8000 (0.9102) | 0.6000 (0.9122) | -25.00%" in text_of(
        "ldp", stores(main=[whole], ldp=[noisy])
    )
    assert "| 0.8000 (0.9102) |" in text_of("ldp-noise", stores(main=[whole], ldp=[noisy]))
    assert "| 0.800 | 0.700 |" in text_of("rank", stores(main=[whole], rank=[rank]))
    full = row("pfedclr", 0.7, settings={"buffer": "full"})
    assert "0.800 (0.910)" in text_of("ablation", stores(main=[whole], ablation=[full]))
    later = full | {"seeds": [7]}
    assert "0.600 (0.910)" in text_of("ablation", stores(main=[whole], ablation=[later]))


@pytest.mark.parametrize(
    ("name", "setting", "values"), [("rank", "rank", (1, 8)), ("beta", "buffer_rate", (0.1, 0.0))]
)
def test_a_sweep_has_the_default_among_its_values(name, setting, values):
    swept = [row("pfedclr", 0.5 + at / 10, settings={setting: v}) for at, v in enumerate(values)]
    known = stores(main=[row("pfedclr", 0.9)], **{name: swept})
    line = line_of(text_of(name, known), "filmtrust | HR@10")
    assert sorted(line.replace("|", " ").split()[2:]) == ["0.500", "0.600", "0.900"]
    panel = EXHIBITS[name].charts(known)[f"{name}-paper"].panels[0]
    assert len(panel.names) == 3
    assert {tuple(sorted(series.y)) for series in panel.series} == {
        (0.5, 0.6, 0.9),
        (0.25, 0.3, 0.45),
    }
    assert (panel.right is not None) == (name == "rank")


def test_convergence_counts_rounds_and_draws_a_line_per_method():
    assert rounds_to([0.1, 0.94, 0.951, 1.0, 0.2]) == 3
    both = [row(m, 0.5, curves=curves([0.1, 0.4, 0.5])) for m in ("fedmf", "pfedclr")]
    other = row("fedmf", 0.5, settings={"aggregate_from": 9}, curves=curves([0.9]))
    known = stores(curves=[*both, other])
    assert "| fedmf | 3 / 3 |" in text_of("convergence", known)
    chart = EXHIBITS["convergence"].charts(known)["convergence-paper"]
    assert [series.label for series in chart.panels[0].series] == ["pfedclr", "fedmf"]


def test_motivation_shows_both_ends_of_training():
    runs = [
        row("fedmf", 0.5, settings={"rounds": 140, "aggregate_from": first}, curves=curves(values))
        for first, values in ((0, [0.2] * 100 + [0.7] * 40), (1, [0.5] * 140))
    ]
    text = text_of("motivation", stores(curves=runs))
    alone = line_of(text, "filmtrust | paper | LT w/o GA")
    assert alone.count("0.200") == 4
    assert alone.count("0.700") == 4
    chart = EXHIBITS["motivation"].charts(stores(curves=runs))["motivation-filmtrust-paper"]
    assert [series.label for series in chart.panels[0].series] == ["LT w/o GA", "w/ GA (1-)"]


def test_a_bubble_is_as_large_as_its_round_is_long():
    rows = [row("fedmf", 0.5, seconds_per_round=1.0), row("pfedclr", 0.9, seconds_per_round=4.0)]
    chart = EXHIBITS["efficiency"].charts(stores(main=rows))["efficiency-paper"]
    sizes = {series.key: list(series.sizes) for series in chart.panels[0].series}
    assert sizes == {"fedmf": [0.25], "pfedclr": [1.0]}


def test_the_papers_figure_stands_beside_ours_under_paper_only():
    figures = {"mean": 0.5, "std": 0.01, "values": [0.49, 0.51]}
    metrics = {"hr@10": figures, "ndcg@10": figures}
    both = {"metrics": metrics, "sampled99": metrics}
    rows = [row("pfedclr", 0.5, "ml-100k", name, **both) for name in ("paper", "leak-free")]
    assert published.quality("pfedclr", "ml-100k") == (0.9989, 0.9225)
    assert published.quality("ease", "ml-100k") is None
    results = stores(main=rows)
    leaky, honest, *_ = EXHIBITS["main"].tables(results)
    assert "(0.999 / 0.922)" in to_markdown(leaky)
    assert "0.999" not in to_markdown(honest)
    assert "0.500 ± 0.010 / 0.500 ± 0.010 · " in to_markdown(honest)
    beside = to_markdown(side_by_side(results, ["ml-100k"]))
    assert beside.endswith("| 0.999 | 0.500 ± 0.010 | 0.500 ± 0.010 | 0.500 ± 0.010 |")
    assert side_by_side(stores(main=rows[:1]), ["ml-100k"]).rows == ()


def test_the_readme_gets_its_tables_between_their_marks(tmp_path):
    page = tmp_path / "README.md"
    order = "<!-- order:begin -->\n<!-- order:end -->\n"
    page.write_text(f"Before\n<!-- table:begin (how) -->\nold\n<!-- table:end -->\nAfter\n{order}")
    rows = [
        row(method, 0.5, data, protocol)
        for method in ("pfedclr", "fedrap")
        for data in ("ml-1m", "filmtrust")
        for protocol in ("paper", "leak-free")
    ]
    rows += [row("sasrec", 0.3, "ml-1m", "sequential"), row("fednext", 0.4, "ml-1m", "leak-free")]
    fill_readme(page, stores(main=rows))
    before, table, after = page.read_text().partition("| ml-1m, pfedclr | 0.960 | 0.500 ")
    assert before.startswith("Before\n<!-- table:begin (how) -->\n| HR@10 |")
    assert table
    after, _, order = after.partition("<!-- order:begin -->")
    assert after.endswith("|\n<!-- table:end -->\nAfter\n")
    assert "| sasrec, central | 0.150 |" in order
    assert "0.200" not in order, "of another protocol"
    assert "fedrap" not in after
    assert "filmtrust" not in after
    assert "old" not in before
    page.write_text("No marks")
    with pytest.raises(UnskewError, match="table:begin"):
        fill_readme(page, stores(main=rows))


def test_the_document_has_a_section_per_table_with_rows_and_marks_quick_ones():
    known = stores(main=[row("pfedclr", 0.9)])
    text = document(known, {"convergence": ["figures/convergence-paper.svg"]})
    assert "## Methods compared\n" in text
    assert "## Rank" not in text
    assert "![Convergence](figures/convergence-paper.svg)" in text
    assert "quick" not in text.lower()
    assert "## Methods compared (quick)" in document(known, quick=True)
