"""Distillation: a small student learns from a large teacher (Hinton et al., 2015, arXiv:1503.02531)."""
