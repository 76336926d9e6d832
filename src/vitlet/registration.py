"""Makes timm find vitlet's models as soon as both packages are imported, in whatever order.

timm takes seconds to import and ``import vitlet`` may cost nothing, so that vitlet cannot simply import it. Where timm
is there already its registry is filled at once; otherwise a finder waits for its import, fills it then, and is gone.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

TIMM, NETWORKS = "timm", "vitlet.models"


class _ThenRegister(Loader):
    """A loader that also imports vitlet's models once its own module is there."""

    def __init__(self, inner: Loader, waiting: MetaPathFinder) -> None:
        self.inner, self.waiting = inner, waiting

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self.inner  # whoever asks timm for its loader gets the real one
        module.__loader__ = self.inner
        self.inner.exec_module(module)
        if self.waiting in sys.meta_path:
            sys.meta_path.remove(self.waiting)
        import_module(NETWORKS)


class _Wait(MetaPathFinder):
    """Stands first among the finders until timm is imported; to be looked up, as by `find_spec`, is no import."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != TIMM:
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        spec = next(filter(None, (finder.find_spec(fullname, path, target) for finder in others)), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _ThenRegister(spec.loader, self)
        return spec


def register_networks() -> None:
    """Register now, or when timm is imported."""
    if TIMM in sys.modules:
        import_module(NETWORKS)
    elif not any(isinstance(finder, _Wait) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Wait())
