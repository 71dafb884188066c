"""Passes that choose how convolutions of images are computed."""
