"""What `build_site.py` makes the documentation's site from."""
