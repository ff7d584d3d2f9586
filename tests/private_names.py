"""Private names of libraries that the source uses, each with the reason. `test_private_names.py` checks them.

A name is written as `module:attribute`. Prefer a public name; where there is none, add the name here.
"""

# Read, called or imported.
USED = {
    "transformers.utils.output_capturing:_active_collector": (
        "GPT-2 does not pass `output_attentions` on to its attention function; the collector tells "
        "`vaswani_sparse` whether weights are wanted."
    ),
    "transformers.configuration_utils:PreTrainedConfig._attn_implementation": (
        "The name of the attention implementation; documented for modeling files, and the library looks "
        "for this literal in them."
    ),
    "transformers.generation.utils:GenerationMixin._update_model_kwargs_for_generation": (
        "What a search passes from one call of the model to the next."
    ),
    "transformers.modeling_utils:PreTrainedModel._can_set_experts_implementation": (
        "Whether a class has experts: the library looks into its file, and that of a sparse class is ours."
    ),
    "datasets.arrow_dataset:Dataset._fingerprint": (
        "The identity of a data set, of which caches are named; there is no public reader."
    ),
    "datasets.arrow_dataset:Dataset._indices": (
        "The rows that a data set has of its table; public methods gather them 70 times as slowly."
    ),
    "transformers.modeling_utils:PreTrainedModel._get_resized_lm_head": (
        "Resizing the output of a vocabulary that is not the source's; the public method resizes both."
    ),
    "torch.nn:Module._forward_hooks": (
        "A search that bypasses the calls of modules must not bypass what somebody hooked to them."
    ),
    "torch.nn:Module._forward_pre_hooks": ("The same."),
    "torch.nn:Module._backward_hooks": ("The same, of a loss that bypasses the output projection."),
    "torch.nn:Module._backward_pre_hooks": ("The same."),
    "torch.nn.modules.module:_has_any_global_hook": ("The same, of hooks to all modules."),
    "torch:_softmax_backward_data": ("The fused gradient of a softmax, for short attention."),
    "torch.ops:mkldnn._linear_pointwise": ("oneDNN's product; the kernel checks that it exists."),
    "torch.ops:mkldnn._reorder_linear_weight": ("oneDNN's packed weights; the kernel checks that it exists."),
}

# Overridden by a class of ours.
OVERRIDDEN = {
    "transformers.generation.utils:GenerationMixin._beam_search": (
        "Our beam search takes its place, and leaves to it all that it does not do itself."
    ),
    "transformers.generation.utils:GenerationMixin._prepare_generation_config": (
        "An option may come from three places; the check of one reads what the library makes of them."
    ),
    "transformers.generation.utils:GenerationMixin._sample": (
        "Greedy search takes its place; sampling that drops finished sources calls it."
    ),
    "transformers.trainer:Trainer._get_grad_norm": (
        "A norm that is not finite stops the run before the step."
    ),
    "transformers.trainer:Trainer._get_output_dir": (
        "The library writes a checkpoint into the unfinished folder; it computes the folder of a trial."
    ),
    "transformers.trainer:Trainer._load_optimizer_and_scheduler": (
        "Sharded state is read in any number of processes."
    ),
    "transformers.trainer:Trainer._push_from_checkpoint": ("A push brings the code and the card."),
    "transformers.trainer:Trainer._save_checkpoint": (
        "Checkpoints are written under another name and renamed when they are whole."
    ),
    "transformers.trainer:Trainer._save_optimizer_and_scheduler": ("Sharded state is written whole."),
    "transformers.utils.hub:PushToHubMixin._upload_modified_files": (
        "A model that is pushed without a training gets a card that describes it; the two public methods "
        "that push both end here."
    ),
}

# What transformers documents for classes of models ("Adding a model"), in spite of the underscore.
_MODEL = "transformers.modeling_utils:PreTrainedModel."
MODEL_FIELDS = {
    f"{_MODEL}{name}": "Part of a model's definition."
    for name in (
        *("_can_compile_fullgraph", "_can_record_outputs", "_fsdp_plan", "_tp_plan", "_init_weights"),
        *("_no_split_modules", "_skip_keys_device_placement", "_supports_attention_backend"),
        *("_supports_flash_attn", "_supports_flex_attn", "_supports_sdpa", "_tied_weights_keys"),
    )
}

# Names that the oldest supported version of transformers does not have; the source does without them there.
NEWER = {f"{_MODEL}_fsdp_plan"}
