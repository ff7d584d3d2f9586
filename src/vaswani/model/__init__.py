"""What travels to the Hub: configurations and models. Imports public names of torch and transformers only."""
