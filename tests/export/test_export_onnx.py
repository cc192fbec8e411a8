"""An ONNX file scores as Python does, for every kind of arithmetic."""

from __future__ import annotations

import json

import numpy as np
import pytest
from export_samples import (
    MODELS,
    check_best,
    error,
    fitted,
    histories,
    model,
    python_scores,
)

from unskew import UnskewError
from unskew.export import to_onnx, write_onnx
from unskew.export.graph import build_graph
from unskew.export.tables import Codes, prepare, strongest
from unskew.methods import METHODS, create
from unskew.methods.newcomers import ItemWeights, Neighbours

onnx = pytest.importorskip("onnx", reason="the extra onnx is not installed")
ort = pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")


def session(content: bytes) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(content, options)


def run(opened, history):
    return opened.run(None, {"history": np.asarray(history, np.int64)})


@pytest.mark.parametrize("precision", ["float32", "float16"])
@pytest.mark.parametrize("name", MODELS)
def test_scores_and_the_best_items_are_those_of_python(name, precision):
    method, download, n_items = model(name)
    prepared = prepare(method, download, n_items, precision)
    opened = session(build_graph(prepared, 10, {}).SerializeToString())
    lists = histories(n_items)
    same = python_scores(method, prepared.download, lists, n_items)
    trained = python_scores(method, download, lists, n_items)
    for history, wanted, original in zip(lists, same, trained, strict=True):
        scores, best, best_scores = run(opened, history)
        assert error(scores, wanted) <= 1e-5
        assert error(scores, original) <= (1e-5 if precision == "float32" else 1e-2)
        check_best(best.tolist(), wanted, history, 1e-5)
        assert np.array_equal(best_scores, scores[best])


@pytest.mark.parametrize("name", ["ease", "slist"])
def test_the_strongest_weights_alone_are_what_python_scores_with(name):
    method, download, n_items = model(name)
    prepared = prepare(method, download, n_items, "float16", 20)
    assert isinstance(prepared.arithmetic, Neighbours)
    assert prepared.arithmetic.neighbours.shape == (n_items, 20)
    assert (np.count_nonzero(prepared.download[0], axis=0) <= 20).all()
    opened = session(build_graph(prepared, 10, {}).SerializeToString())
    lists = histories(n_items, 50)
    same = python_scores(method, prepared.download, lists, n_items)
    for history, wanted in zip(lists, same, strict=True):
        assert error(run(opened, history)[0], wanted) <= 1e-5


def test_kept_weights_are_the_largest_towards_each_item():
    weights = np.random.default_rng(0).standard_normal((7, 7)).astype(np.float32)
    kept = strongest(ItemWeights(weights, None), 3)
    for item in range(7):
        largest = np.sort(np.abs(weights[:, item]))[::-1][:3]
        assert np.array_equal(np.abs(kept.similarity[item]), largest)
        assert np.array_equal(weights[kept.neighbours[item], item], kept.similarity[item])
    assert strongest(ItemWeights(weights, None), 99).neighbours.shape == (7, 7)


def test_a_repeated_item_counts_where_it_came_first_as_in_python():
    run_, split = fitted("fedrefit"), fitted("fedrefit").split
    exported = to_onnx(run_)
    opened = session(exported.content)
    history = [7, 3, 7, 90, 3, 11]
    assert np.array_equal(run(opened, history)[0], run(opened, [7, 3, 90, 11])[0])
    wanted = run_.fold_in([split.item_ids[item] for item in history])
    _, best, scores = run(opened, history)
    assert [split.item_ids[item] for item in best] == [row["item"] for row in wanted]
    assert scores == pytest.approx([row["score"] for row in wanted], rel=1e-5)


def test_the_list_of_best_items_is_as_long_as_asked_and_never_has_seen_ones():
    method, download, n_items = model("fednext")
    prepared = prepare(method, download, n_items, "float32")
    opened = session(build_graph(prepared, 500, {}).SerializeToString())
    for n_seen in (0, 150, n_items):
        _, best, scores = run(opened, np.arange(n_seen))
        assert sorted(best) == list(range(n_seen, n_items))
        assert (np.diff(scores) <= 0).all()


def test_an_unknown_item_is_an_error_and_a_negative_number_is_padding():
    opened = session(to_onnx(fitted("fedrefit")).content)
    with pytest.raises(Exception, match="1500"):
        run(opened, [3, 1500])
    padded, plain = run(opened, [-1, 3, 9, -1, -1]), run(opened, [3, 9])
    assert all(np.array_equal(a, b) for a, b in zip(padded, plain, strict=True))


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method_exports_its_arithmetic_or_none(name):
    """Scores of newcomers need Python exactly where a method trains, or runs in PyTorch."""
    if name in ("sasrec", "gru4rec"):
        pytest.importorskip("torch")
    method = create(name)
    server, _ = method.init(3, 20, 0)
    arithmetic = method.export(method.download(server))
    exportable = {*MODELS, "fednext"}
    assert (arithmetic is not None) == (name in exportable)


def test_the_files_say_what_they_are(tmp_path):
    exported = to_onnx(fitted("fedrefit"), float16=True, k=7)
    files = write_onnx(exported, tmp_path / "new" / "folder", "unskew export x")
    assert [path.name for path in files] == ["model.onnx", "items.json", "model_card.md"]
    built = onnx.load(files[0])
    onnx.checker.check_model(built, full_check=True)
    assert [one.key for one in built.metadata_props][:2] == ["unskew", "Method"]
    assert len(run(session(files[0].read_bytes()), [1])[1]) == 7
    items = json.loads(files[1].read_text())
    split = fitted("fedrefit").split
    assert (items["format"], items["version"]) == ("unskew-items", 1)
    assert items["labels"] == list(split.item_ids)
    assert items["titles"] == list(split.titles)
    card = files[2].read_text()
    for said in ("demo", "leak-free", "NDCG@10", "free of any terms", "unskew export x", "SHA-256"):
        assert said in card
    # float16 halves the tables: 1,500 items with a row of 64 and one of 129 numbers.
    assert files[0].stat().st_size < 1500 * (64 + 129) * 2 + 15_000
    trained, rounded = exported.ndcg
    assert trained == pytest.approx(rounded, abs=0.002)
    assert trained == pytest.approx(fitted("fedrefit").metrics["ndcg@10"], abs=1e-6)


def test_eight_bits_keep_a_table_within_a_step_of_each_number():
    table = np.random.default_rng(0).standard_normal((50, 9)).astype(np.float32)
    table[:, -1] *= 100  # a column of another size has a scale of its own
    table[3], table[:, 4] = 0, 0
    codes = Codes.of(table)
    step = codes.rows[:, None] * codes.columns
    assert (np.abs(codes.table() - table) <= 0.501 * step).all()
    assert np.abs(codes.table()[:, :-1] - table[:, :-1]).max() < 0.06


def test_numbers_too_large_for_float16_are_refused():
    method, download, n_items = model("fedrefit")
    huge = download._replace(V=download.V * np.float32(1e9))
    with pytest.raises(UnskewError, match="float16 cannot hold"):
        prepare(method, huge, n_items, "float16")
    prepare(method, huge, n_items, "float32")
