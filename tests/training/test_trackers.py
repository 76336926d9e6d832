"""The same numbers in TensorBoard, Weights & Biases, MLflow and Trackio."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import faults
import vitlet
from vitlet.training.loop import train
from vitlet.training.run_folder import read_rows


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return faults.write_images(tmp_path_factory.mktemp("trackers") / "data")


def test_tensorboard_has_every_number_once_after_a_kill(data: Path, tmp_path: Path) -> None:
    config = faults.make_config(data, tmp_path / "run")
    log = tmp_path / "log"
    started, _ = faults.start(config, 1, log, death=faults.Death("step", 10, 0.0))
    faults.await_end(started)
    time.sleep(1.1)  # TensorBoard orders its files by the second
    train(config)
    events = EventAccumulator(str(tmp_path / "run"))
    events.Reload()
    found = [(event.step, event.value) for event in events.Scalars("train/drloc")]
    assert found == [(row["epoch"], pytest.approx(row["train/drloc"])) for row in read_rows(tmp_path / "run")]


@pytest.mark.parametrize("name", ["wandb", "mlflow", "trackio"])
def test_a_tracker_that_is_not_there_is_named(
    name: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    changes: dict[str, Any] = {f"log_{name}": True}
    with pytest.raises(vitlet.VitletError, match=rf"--log-{name} needs {name}: pip install 'vitlet\[{name}\]'"):
        train(faults.make_config(data, tmp_path / "run", **changes))
    assert not (tmp_path / "run").exists()


PROGRAMS = {
    "wandb": r"""
import glob, re
file, = glob.glob("run/wandb/offline-run-*/*.wandb")  # records of protocol buffers; the numbers stand in them as JSON
text = open(file, "rb").read()
print(list(dict.fromkeys(float(n) for n in re.findall(rb"train/loss[^0-9]{1,4}([0-9]+[.][0-9]+)", text))))
""",
    "mlflow": """
import mlflow
client = mlflow.MlflowClient()
runs = client.search_runs([client.get_experiment_by_name("vitlet").experiment_id])
print([metric.value for metric in client.get_metric_history(runs[0].info.run_id, "train/loss")])
assert runs[0].data.params["batch_size"] == "8"
""",
    "trackio": """
import sqlite3, glob, json, os
found = []
for file in glob.glob(os.environ["TRACKIO_DIR"] + "/**/*.db", recursive=True):
    for (text,) in sqlite3.connect(file).execute("select metrics from metrics order by step"):
        found.append(json.loads(text)["train/loss"])
print(found)
""",
}


@pytest.mark.heavy
@pytest.mark.parametrize("name", list(PROGRAMS))
def test_trackers_get_every_epoch(name: str, data: Path, tmp_path: Path) -> None:
    if find_spec(name) is None:
        pytest.skip(f"{name} is not installed; `make test-all` installs it")
    small = "--model vit_tiny_patch16_224 --model-kwargs patch_size=4 embed_dim=24 depth=1 num_heads=2 --img-size 16"
    words = ["train", str(data), *small.split(), "-b", "8", "--epochs", "2", "--device", "cpu", "--output", "run"]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "WANDB_MODE": "offline",
        "WANDB_SILENT": "true",
        "MLFLOW_TRACKING_URI": f"file://{tmp_path}/mlruns",
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "TRACKIO_DIR": str(tmp_path / "trackio"),
        "DO_NOT_TRACK": "1",
    }
    options: dict[str, Any] = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True}
    done = subprocess.run([sys.executable, "-m", "vitlet", *words, f"--log-{name}"], **options)
    assert done.returncode == 0, done.stdout + done.stderr
    read = subprocess.run([sys.executable, "-c", PROGRAMS[name]], **options)
    assert read.returncode == 0, read.stderr
    expected = [row["train/loss"] for row in read_rows(tmp_path / "run")]
    assert json.loads(read.stdout.splitlines()[-1]) == pytest.approx(expected)
