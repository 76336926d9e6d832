"""What detection and segmentation share: a trained backbone of any kind under a head for dense predictions."""
