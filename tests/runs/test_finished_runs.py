"""A finished run as an object: short to print, frames, a chart, the same from a folder."""

import numpy as np
import pytest

import unskew
from unskew.kernels import get_threads
from unskew.types import UnskewError

SETTINGS = {"rounds": 3, "dim": 4}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("finished") / "run"


@pytest.fixture(scope="module")
def finished(folder, tiny_interactions):
    return unskew.fit("fedmf", tiny_interactions, seeds=(0, 3), out=folder, **SETTINGS)


@pytest.fixture(scope="module")
def in_memory(tiny_interactions):
    return unskew.fit("fedmf", tiny_interactions, seeds=(0, 3), **SETTINGS)


def test_a_run_is_short_to_print_and_says_what_it_is(finished, in_memory):
    for run in (finished, in_memory):
        text = repr(run)
        assert len(text) < 1000
        assert "fedmf on demo, protocol leak-free" in text
        assert "seeds 0, 3" in text
        assert f"NDCG@10 {run.metrics['ndcg@10']:.4f} ±" in text
    assert str(finished.folder) in repr(finished)
    assert "in memory" in repr(in_memory)


def test_a_notebook_shows_a_table_and_escapes_it(in_memory):
    from dataclasses import replace

    odd = replace(in_memory, _result=replace(in_memory.result(), notes=["<script>x</script>"]))
    html = odd._repr_html_()
    assert "<table>" in html
    assert "&lt;script&gt;" in html
    assert "<script>" not in html


def test_the_history_has_a_row_per_seed_and_round(finished):
    history = finished.history
    assert history.select("seed", "round").rows() == [(s, r) for s in (0, 3) for r in (1, 2, 3)]
    rows = [row for outcome in finished.outcomes for row in outcome.rows]
    assert history["loss"].to_list() == [row["loss"] for row in rows]
    wanted = [row["validation"]["ndcg@10"] for row in rows]
    assert history["validation/ndcg@10"].to_list() == wanted


def test_metrics_per_user_average_to_those_of_the_run(finished):
    users = finished.per_user
    assert len(users) == 2 * finished.split.n_users
    assert users["seed"].unique().sort().to_list() == [0, 3]
    by_seed = users.drop("user").group_by("seed").mean()
    assert by_seed["ndcg@10"].mean() == pytest.approx(finished.metrics["ndcg@10"])


def test_an_opened_run_is_the_object_that_training_gave(finished, folder):
    opened = unskew.open_run(folder)
    assert opened.summary() == finished.summary()
    assert opened.history.equals(finished.history)
    assert opened.per_user.equals(finished.per_user)
    assert repr(opened) == repr(finished)
    user = opened.split.user_ids[3]
    assert opened.recommend(user, 4) == finished.recommend(user, 4)
    assert opened.recommend_all(3).equals(finished.recommend_all(3))
    items = list(opened.split.item_ids[:2])
    assert opened.fold_in(items, 3) == finished.fold_in(items, 3)
    theirs, ours = opened.recommender(3), finished.recommender(3)
    assert theirs.recommend_all(3).equals(ours.recommend_all(3))
    with pytest.raises(UnskewError, match=r"has seeds \[0, 3\], not 1"):
        opened.recommender(1)


def test_an_unfinished_run_says_how_to_end_it(tiny_interactions, tmp_path):
    def stop(seed, row, rounds):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        unskew.fit("fedmf", tiny_interactions, out=tmp_path / "run", on_round=stop, **SETTINGS)
    with pytest.raises(UnskewError, match=r"is not finished; `unskew resume .*run` ends it"):
        unskew.open_run(tmp_path / "run")


def test_a_chart_shows_every_round(finished):
    figure = finished.plot()
    validation, loss = figure.axes
    assert list(validation.lines[0].get_xdata()) == [1, 2, 3]
    wanted = np.mean(finished.curves("loss"), axis=0)
    assert np.allclose(loss.lines[0].get_ydata(), wanted)
    assert figure._repr_svg_().startswith("<svg")


def test_options_of_fit_reach_the_run(tiny_interactions, threads_restored):
    seen, before = [], get_threads()
    private = unskew.fit(
        "fedmf",
        tiny_interactions,
        ldp={"noise": 0.1, "clip": 1.0},
        threads=1,
        on_round=lambda seed, row, rounds: seen.append((seed, row["round"], rounds, get_threads())),
        **SETTINGS,
    )
    assert seen == [(0, 1, 3, 1), (0, 2, 3, 1), (0, 3, 3, 1)]
    assert get_threads() == before
    assert private.summary()["privacy"]["clip"] == 1.0
    assert any(name.startswith("ldp/") for name in private.history.columns)
    with pytest.raises(UnskewError, match='has no setting "nois"'):
        unskew.fit("fedmf", tiny_interactions, ldp={"nois": 0.1})
    assert get_threads() == before


def test_progress_is_shown_only_on_request(tiny_interactions, capsys):
    unskew.fit("fedmf", tiny_interactions, **SETTINGS)
    assert capsys.readouterr().err == ""
    unskew.fit("fedmf", tiny_interactions, progress=True, **SETTINGS)
    assert "seed 0: round 3/3" in capsys.readouterr().err
