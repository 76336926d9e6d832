"""A software bill of materials (CycloneDX JSON) from a lock file, offline: ``python benchmarks/sbom.py LOCK FILE``."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from vitlet import __version__

LINE = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)")
HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


def components(lock: str) -> list[dict[str, object]]:
    """The packages of a lock file of `uv pip compile --generate-hashes`, with the checksums of all their files."""
    found: list[dict[str, object]] = []
    hashes: list[dict[str, str]] = []
    for line in lock.splitlines():
        if match := LINE.match(line):
            name, version = match[1].lower(), match[2]
            hashes = []
            purl = f"pkg:pypi/{name}@{version}"
            found.append(
                {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl, "hashes": hashes}
            )
        hashes += [{"alg": "SHA-256", "content": digest} for digest in HASH.findall(line)]
    return found


def bill(lock: str) -> dict[str, object]:
    """The whole document; the same lock file gives the same bytes."""
    about = {"type": "library", "name": "vitlet", "version": __version__, "purl": f"pkg:pypi/vitlet@{__version__}"}
    kind = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
    }
    return {**kind, "version": 1, "metadata": {"component": about}, "components": components(lock)}


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    made = bill(source.read_text(encoding="utf-8"))
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    print(f"{target}: {len(made['components'])} components")  # type: ignore[arg-type]
