"""Networks by name, through timm; importing this package makes timm find the house's own."""

from vitlet.models import arvit as arvit
