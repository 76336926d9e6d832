"""Decide whether a run is new or resumed, and with which settings."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitlet.config import BaseConfig, RunConfig
from vitlet.errors import VitletError
from vitlet.training.run_folder import Config, read_config, run_name


def differing(path: Path, given: Mapping[str, Any], kind: type[BaseConfig] = RunConfig) -> list[str]:
    """The settings among these that a run's own contradict, in words; those free to change do not count."""
    stored = read_config(path, kind).to_dict()
    return differences(stored, kind.from_dict({**stored, **given}).to_dict(), kind)


def differences(
    stored: Mapping[str, Any], asked: Mapping[str, Any], kind: type[BaseConfig], owner: str = "the run"
) -> list[str]:
    """Differences between two sets of settings as text, without those that may change."""
    free = {item.name for item in kind.settings() if item.metadata["free"]}
    return [
        f"{key} {asked.get(key)!r} ({owner} has {stored.get(key)!r})"
        for key in sorted(stored.keys() | asked.keys())
        if key not in free and asked.get(key) != stored.get(key)
    ]


def continued(path: Path, given: Mapping[str, Any], kind: type[Config]) -> Config:
    """Settings of a resumed run; settings that are given again must agree, except those that may change."""
    different = differing(path, given, kind)
    if different:
        raise VitletError(
            f"cannot continue {path} with other settings: {'; '.join(different)}. Leave them out, or start another run."
        )
    config = kind.from_dict({**read_config(path, kind).to_dict(), **given})
    return replace(config, output=str(path), resume=str(path), overwrite=False)


def resumed(config: Config, given: Mapping[str, Any]) -> Config:
    """The settings of the run that ``config.resume`` means; of a new one if --output, given with ``auto``, is none yet.

    ``auto`` alone stays as it is: which run it means is known once no setting is open, see `find_unfinished`.
    """
    assert config.resume is not None
    if config.overwrite:
        raise VitletError("--resume continues a run, --overwrite empties it; give one of them.")
    path = Path(config.resume)
    if config.resume == "auto":
        if config.output is None:
            return config
        path = Path(config.output)
        if not (path / "config.yaml").is_file():
            return replace(config, resume=None)
    if config.output is not None and Path(config.output) != path:
        raise VitletError(f"--resume {path} continues in its own folder; leave out --output {config.output}.")
    given = {key: value for key, value in given.items() if key not in ("resume", "output", "overwrite")}
    return continued(path, given, type(config))


def find_unfinished(config: BaseConfig, left_open: Collection[str] = ()) -> Path | None:
    """The newest run under ``runs/`` of these very settings that has not come to its end.

    Args:
        config: the settings of a new run, resolved.
        left_open: settings that a speed test would find, which may be others in the run.
    """
    found = [path.parent for path in Path("runs").glob(f"{run_name(config)}-*/config.yaml")]
    for path in sorted(found, key=lambda run: (run / "config.yaml").stat().st_mtime, reverse=True):
        try:
            stored = read_config(path, type(config)).to_dict()
            asked = {**config.to_dict(), **{key: stored.get(key) for key in left_open}}
            if not (path / "result.json").is_file() and not differences(stored, asked, type(config)):
                return path
        except VitletError:  # settings of another version: not this command's run
            continue
    return None


def given_settings(config: BaseConfig) -> dict[str, Any]:
    """The settings that differ from the defaults."""
    usual = type(config)().to_dict()
    return {key: value for key, value in config.to_dict().items() if value != usual.get(key)}


def is_sharded(config: BaseConfig) -> bool:
    """Whether this run, or the one it continues, spreads its weights over processes."""
    stored = Path(config.resume or "auto")
    return config.fsdp or ((stored / "config.yaml").is_file() and read_config(stored, type(config)).fsdp)
