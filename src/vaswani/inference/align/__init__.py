"""Word alignments from cross-attention."""
