"""The pages of the public names, which mkdocstrings fills from signatures and docstrings, without imports."""

import vaswani

CONFIGURATIONS = {
    "VaswaniConfig",
    "VaswaniEncoderConfig",
    "VaswaniDecoderConfig",
}  # documented on their own page
GROUPS = {
    "Using models": [
        *("Translator", "Scorer", "Aligner", "Classifier", "QuestionAnswerer"),
        *("Embedder", "ScalarMix", "Prompter"),
    ],
    "Training": ["Trainer", "TrainingArguments", "DistillationTrainer", "DistillationObjectives"],
    "Conversion": [
        *("sparsify", "interop.convert", "interop.export", "interop.combine"),
        *("interop.average", "interop.export_folder"),
    ],
    "Decoding": [
        *("inference.sampling.SeededSampling", "inference.decoding.GNMTLengthPenalty"),
        *("inference.decoding.LengthLimits", "inference.decoding.MinimumLengths"),
        *("inference.required_phrases.RequiredPhrases", "inference.required_phrases.Phrase"),
        "inference.forced_prefixes.ForcedPrefixes",
    ],
}


def api_pages() -> dict[str, str]:
    """Return a page for each group of names; names that are in no group are models."""
    grouped = {name for names in GROUPS.values() for name in names}
    models = [name for name in vaswani.__all__ if name not in grouped | CONFIGURATIONS]
    groups = {**GROUPS, "Models": models}
    return {
        f"api/{title.lower().replace(' ', '_')}.md": f"# {title}\n\n"
        + "".join(f"::: vaswani.{name}\n\n" for name in names)
        for title, names in groups.items()
    }
