"""Models by name, through timm; importing this package makes timm find vitlet's own."""

import vitlet.models.arvit
import vitlet.models.cvt
import vitlet.models.small
import vitlet.models.t2t  # noqa: F401  # each registers its models
