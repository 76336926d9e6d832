"""Networks by name, through timm; importing this package makes timm find the house's own."""

import vitlet.models.arvit  # noqa: F401  # registers its models
