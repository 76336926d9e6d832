"""What detection and segmentation share: backbone, pyramid, settings, job."""
