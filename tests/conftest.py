"""Small real components shared by the tests: image folders made on the spot, one-thread torch."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from builders.digits import write_digits

torch.set_num_threads(1)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the tests, and keep a file's tests in one process so that they share its fixtures; pages go one by one.

    What forks comes first, what compiles last: compiled code leaves threads behind that a fork would not survive.
    """
    items.sort(
        key=lambda item: ("compile" in item.name, "test_docs" not in item.nodeid, "/training/" not in item.nodeid)
    )
    for item in items:
        alone = "test_docs" in item.nodeid
        item.add_marker(pytest.mark.xdist_group(item.name if alone else item.path.stem))


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three classes of eight images, not split."""
    return write_digits(tmp_path / "data")


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with train, val and test folders; for tests that only read."""
    root = tmp_path_factory.mktemp("shared")
    for number, split in enumerate(("train", "val", "test")):
        write_digits(root / split, per_class=8 if split == "train" else 4, skip=10 * number)
    return root


@pytest.fixture(scope="session")
def small_runs(shared_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two runs with a task and other seeds, and one of two classes; for tests that only read."""
    from vitlet.cli import main

    quick = ["--img-size", "16", "--model-kwargs", "patch_size=4", "embed_dim=32", "depth=2", "num_heads=2"]
    quick += ["--epochs", "2", "--hflip", "0", "-b", "8", "--task", "drloc=0.1", "--drloc.hidden", "16"]
    root = tmp_path_factory.mktemp("small")
    for number, extra in enumerate(([], ["--seed", "1"], ["--classes", "digit 0", "digit 1"])):
        assert main(["train", str(shared_folder), *quick, *extra, "--output", str(root / f"run{number}")]) == 0
    return [root / f"run{number}" for number in range(3)]


BROWSER_FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
    " --disable-component-update --disable-sync --use-fake-device-for-media-stream --use-fake-ui-for-media-stream"
)
"""The last two make a camera that shows a moving pattern."""


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Debian's Chromium, driven; for tests that need a real browser."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium: pip install 'vitlet[browser]'")
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("needs Debian's chromium and chromium-driver; `make browser` installs them, as root")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in BROWSER_FLAGS.split():
        options.add_argument(flag)
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('profile')}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    started = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield started
    started.quit()
