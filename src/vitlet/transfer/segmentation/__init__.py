"""A class for every pixel: UPerNet on a trained backbone."""
