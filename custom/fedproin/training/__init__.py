"""Training and evaluation of one model at one site."""
