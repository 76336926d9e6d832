"""Common parts of detection and segmentation: backbone, pyramid, settings, job."""
