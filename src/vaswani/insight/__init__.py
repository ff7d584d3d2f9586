"""Plots of models and runs, and counts of operations."""
