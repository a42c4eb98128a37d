"""Encoders and the classifiers built on them."""
