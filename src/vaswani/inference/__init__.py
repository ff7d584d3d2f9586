"""Using trained models: translating, scoring, aligning, classifying, answering, embedding, generating."""
