"""The kernels of this package in models of other libraries."""
