"""Dense prediction: a trained backbone under detection and segmentation heads."""
