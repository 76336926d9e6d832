"""Networks by name, through timm."""
