"""Runs sent to experiment trackers: what is read back from them is what the run itself recorded."""

import json
import sys
from importlib.util import find_spec

import pytest

import unskew
from conftest import run_unskew
from unskew.runs import Tracking, read_rounds
from unskew.runs.tracking import TRACKERS, round_figures
from unskew.types import UnskewError

SETTINGS = {"rounds": 3, "dim": 4}
needs_mlflow = pytest.mark.skipif(find_spec("mlflow") is None, reason="needs the extra track")
needs_tensorboard = pytest.mark.skipif(
    find_spec("tensorboardX") is None, reason="needs the extra track"
)


def recorded(run):
    """Figures of every round by (name, round), as the run has them."""
    return {
        (name, row["round"]): value
        for outcome in run.outcomes
        for row in outcome.rows
        for name, value in round_figures(outcome.seed, row).items()
    }


def read_events(folder):
    """Scalars by (name, step) and texts by name, of TensorBoard's event files in a folder."""
    from tensorboardX.proto.event_pb2 import Event

    scalars, texts = {}, {}
    for path in folder.glob("events.out.tfevents.*"):
        record = path.read_bytes()
        while record:  # length (8 bytes), its checksum (4), the event, its checksum (4)
            length = int.from_bytes(record[:8], "little")
            event = Event.FromString(record[12 : 12 + length])
            record = record[16 + length :]
            for value in event.summary.value:
                name = value.tag.replace("_at_", "@")
                if value.HasField("simple_value"):
                    scalars[name, event.step] = value.simple_value
                else:
                    texts[name.removesuffix("/text_summary")] = value.tensor.string_val[0].decode()
    return scalars, texts


@needs_tensorboard
def test_tensorboard_has_the_rows_of_the_run(tiny_interactions, tmp_path):
    run = unskew.fit(
        "fedmf",
        tiny_interactions,
        seeds=(0, 1),
        out=tmp_path / "tracked",
        track="tensorboard",
        **SETTINGS,
    )
    folder = tmp_path / "tracked" / "track" / "tracked"
    scalars, texts = read_events(folder)
    final = {name: v for (name, _), v in scalars.items() if name.startswith("final/")}
    rounds = {key: v for key, v in scalars.items() if not key[0].startswith("final/")}
    assert rounds == pytest.approx(recorded(run))
    assert len(rounds) > 2 * 3 * 5
    assert final == pytest.approx({f"final/{name}": v for name, v in run.metrics.items()})
    assert "settings.dim = 4" in texts["settings"]
    assert "protocol = leak-free" in texts["settings"]
    page = folder / "report.html"
    assert str(page) in texts["report"]
    assert f"{run.metrics['ndcg@10']:.4f}" in page.read_text()


@pytest.mark.slow
@needs_mlflow
def test_mlflow_has_the_rows_of_the_run_also_after_a_stop(tiny_interactions, tmp_path, monkeypatch):
    from mlflow.tracking import MlflowClient

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    store = tmp_path / "logs"

    def stop(seed, row, rounds):
        if row["round"] == 2:
            raise KeyboardInterrupt

    options = {"out": "tracked", "track": ["mlflow"], "track_dir": "logs", **SETTINGS}
    with pytest.raises(KeyboardInterrupt):
        unskew.fit("fedmf", tiny_interactions, on_round=stop, **options)
    spec, _ = unskew.runs.read_spec(tmp_path / "tracked")
    with Tracking(["mlflow"], tmp_path / "tracked", store, spec) as tracking:
        run = unskew.runs.run(
            spec, tiny_interactions, out=tmp_path / "tracked", resume=True, tracking=tracking
        )
        page = tmp_path / "page.html"
        page.write_text("the report")
        tracking.finish(run.metrics, page)

    client = MlflowClient(tracking_uri=f"sqlite:///{store / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("unskew")
    found = client.search_runs([experiment.experiment_id], order_by=["attributes.start_time"])
    assert [one.info.status for one in found] == ["KILLED", "FINISHED"]
    whole = found[1]
    assert whole.info.run_name == "tracked"
    assert whole.data.params["settings.dim"] == "4"
    assert whole.data.params["method"] == "fedmf"
    rounds = {}
    for name in whole.data.metrics:
        if not name.startswith("final/"):
            for one in client.get_metric_history(whole.info.run_id, name):
                rounds[name.replace("_at_", "@"), one.step] = one.value
    assert rounds == pytest.approx(recorded(run))
    for name, value in run.metrics.items():
        assert whole.data.metrics[f"final/{name.replace('@', '_at_')}"] == pytest.approx(value)
    (artifact,) = client.list_artifacts(whole.info.run_id)
    assert artifact.path == "page.html"
    assert not (tmp_path / "mlruns").exists()


@needs_tensorboard
def test_the_command_tracks_a_run_and_a_resumed_one(tmp_path):
    options = ("--method", "popularity", "--data", "demo", "--out", "run")
    run_unskew("run", *options, "--track", "tensorboard", cwd=tmp_path)
    (rows,) = read_rounds(tmp_path / "run").values()
    scalars, _ = read_events(tmp_path / "run" / "track" / "run")
    name = "validation/ndcg@10"
    assert scalars[f"seed-0/{name}", 1] == pytest.approx(rows[0]["validation"]["ndcg@10"])
    where = ("--track", "tensorboard", "--track-dir", "logs")
    out, _ = run_unskew("resume", "run", *where, "--json", cwd=tmp_path)
    again, _ = read_events(tmp_path / "logs" / "run")
    assert again == scalars
    assert again["final/ndcg@10", 0] == pytest.approx(json.loads(out)["metrics"]["ndcg@10"]["mean"])


def test_trackers_that_cannot_be_used_say_so(tiny_interactions, tmp_path, monkeypatch):
    with pytest.raises(UnskewError, match='no tracker "neptune"; choose one of tensorboard'):
        unskew.fit("fedmf", tiny_interactions, track="neptune", out=tmp_path / "a")
    with pytest.raises(UnskewError, match="needs a folder"):
        unskew.fit("fedmf", tiny_interactions, track="tensorboard")
    for kind, module in zip(TRACKERS, ("tensorboardX", "mlflow.tracking", "wandb"), strict=True):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(UnskewError, match=rf"pip install 'unskew\[{kind}\]'"):
            unskew.fit("fedmf", tiny_interactions, track=kind, out=tmp_path / "a")
    assert not (tmp_path / "a" / "run.json").exists()
