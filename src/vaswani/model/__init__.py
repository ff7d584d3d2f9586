"""What travels to the Hub: configurations, models and kernels. Imports torch, numpy and transformers only."""
