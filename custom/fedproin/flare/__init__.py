"""NVIDIA FLARE components: they carry messages and decide nothing."""
