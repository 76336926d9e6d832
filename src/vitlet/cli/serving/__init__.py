"""A web page and an HTTP interface on this machine: images in, classes and maps out."""
