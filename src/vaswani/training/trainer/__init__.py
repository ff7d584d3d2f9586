"""The trainers, their checkpoints and their callbacks."""
