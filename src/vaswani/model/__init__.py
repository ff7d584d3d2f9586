"""What travels to the Hub: configurations, models and kernels. Imports torch and transformers only."""
