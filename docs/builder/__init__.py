"""The parts from which `build_site.py` makes the documentation's site."""
