"""Objects, their boxes and masks: Mask R-CNN and Cascade Mask R-CNN on a trained backbone."""
