"""A trained model in use: prediction, calibration, export."""
