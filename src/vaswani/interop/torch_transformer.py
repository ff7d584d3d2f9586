"""Convert `torch.nn.Transformer`, which has only stacks: no embeddings, positions or output projection."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn import functional

from vaswani.errors import UserError
from vaswani.interop.weights import Rule, linear, to_ours
from vaswani.model.configuration_vaswani import VaswaniConfig
from vaswani.model.modeling_vaswani import VaswaniModel

ACTIVATIONS = {"relu": functional.relu, "gelu": functional.gelu}
# Traits that must be equal in the layers of both stacks; others need to be equal only within a stack.
SHARED_TRAITS = ("activation", "norm_first", "bias", "dropout", "layer_norm_eps")
NO_EMBEDDINGS = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")


def _attention(theirs: str, ours: str) -> tuple[Rule, ...]:
    names = [f"{ours}.{name}_proj" for name in "qkv"]
    return (
        Rule(f"{theirs}.in_proj_weight", tuple(f"{name}.weight" for name in names)),
        Rule(f"{theirs}.in_proj_bias", tuple(f"{name}.bias" for name in names)),
        *linear(f"{theirs}.out_proj", f"{ours}.out_proj"),
    )


def _stack(stack: str, norms: tuple[str, ...]) -> tuple[Rule, ...]:
    layer = f"{stack}.layers.{{}}"
    rules: list[Rule] = [*_attention(f"{layer}.self_attn", f"{layer}.self_attn")]
    rules += _attention(f"{layer}.multihead_attn", f"{layer}.encoder_attn")
    rules += [*linear(f"{layer}.linear1", f"{layer}.fc1"), *linear(f"{layer}.linear2", f"{layer}.fc2")]
    for number, norm in enumerate(norms, start=1):
        rules += linear(f"{layer}.norm{number}", f"{layer}.{norm}")
    return (*rules, *linear(f"{stack}.norm", f"{stack}.layer_norm"))


RULES = (
    *_stack("encoder", ("self_attn_layer_norm", "final_layer_norm")),
    *_stack("decoder", ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm")),
)


def from_torch(module: nn.Transformer) -> VaswaniModel:
    """Convert the stacks to a `VaswaniModel`, which needs `inputs_embeds` and `decoder_inputs_embeds`.

    Raises:
        UserError: stacks or layers are custom modules, they differ where vaswani has one value for all, or
            the activation is neither ReLU nor GELU.
    """
    model: Any = VaswaniModel(_config(module))
    state = to_ours(module.state_dict(), RULES, set(model.state_dict()) - set(NO_EMBEDDINGS), {})
    state |= {name: model.state_dict()[name].zero_() for name in NO_EMBEDDINGS}
    parameter = next(module.parameters())
    model.to(parameter.device, parameter.dtype).load_state_dict(state)
    model.config.dtype = parameter.dtype
    return model.train(module.training)


def _config(module: nn.Transformer) -> VaswaniConfig:
    _check_layers(module)
    encoder, decoder = module.encoder.layers[0], module.decoder.layers[0]
    names = [name for name, function in ACTIVATIONS.items() if encoder.activation is function]
    if not names:
        raise UserError(
            f"the activation {encoder.activation} cannot be converted; expected {' or '.join(ACTIVATIONS)}"
        )
    bias = encoder.linear1.bias is not None
    return VaswaniConfig(
        vocab_size=1,
        d_model=module.d_model,
        encoder_layers=len(module.encoder.layers),
        decoder_layers=len(module.decoder.layers),
        encoder_attention_heads=encoder.self_attn.num_heads,
        decoder_attention_heads=decoder.self_attn.num_heads,
        encoder_ffn_dim=encoder.linear1.out_features,
        decoder_ffn_dim=decoder.linear1.out_features,
        dropout=encoder.dropout.p,
        attention_dropout=encoder.self_attn.dropout,
        activation_dropout=encoder.dropout.p,
        activation_function=names[0],
        norm_order="pre" if encoder.norm_first else "post",
        final_norm=True,
        layer_norm_eps=encoder.norm1.eps,
        norm_bias=bias,
        attention_bias=bias,
        ffn_bias=bias,
        position_embedding="none",
        share_encoder_decoder_embeddings=False,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
        decoder_start_token_id=None,
    )


def _is_plain(module: nn.Transformer) -> bool:
    """Return whether all stacks, layers and norms are PyTorch's own, without custom computation."""
    encoder: Any = module.encoder
    decoder: Any = module.decoder
    parts: list[tuple[Any, Any]] = [
        (module, nn.Transformer),
        (encoder, nn.TransformerEncoder),
        (decoder, nn.TransformerDecoder),
    ]
    if not all(type(part).forward is kind.forward for part, kind in parts):
        return False
    parts = [(stack.norm, nn.LayerNorm) for stack in (encoder, decoder)]
    parts += [(layer, nn.TransformerEncoderLayer) for layer in encoder.layers]
    parts += [(layer, nn.TransformerDecoderLayer) for layer in decoder.layers]
    return all(type(part) is kind for part, kind in parts)


def _check_layers(module: nn.Transformer) -> None:
    """Raise a UserError unless all layers compute the same with their own weights."""
    if not _is_plain(module):
        raise UserError(
            "a torch.nn.Transformer with custom stacks is not supported; expected the default stacks"
        )
    of_model = _traits(module.encoder.layers[0], module.encoder.norm)
    stacks: dict[str, Any] = {"encoder": module.encoder, "decoder": module.decoder}
    for name, stack in stacks.items():
        of_stack = _traits(stack.layers[0], stack.norm)
        expected = of_stack | {trait: of_model[trait] for trait in SHARED_TRAITS}
        for number, layer in enumerate(stack.layers):
            found = _traits(layer, stack.norm)
            for trait, value in expected.items():
                if found[trait] != value or isinstance(value, tuple):
                    raise UserError(
                        f"layer {number} of the {name} has {trait}={found[trait]!r}, and the first has "
                        f"{value!r}; vaswani has one value for all"
                    )


def _traits(layer: Any, final_norm: nn.LayerNorm) -> dict[str, Any]:
    """Return the settings of a layer and of the norm of its stack, besides the weights."""
    parts = [*layer.children(), final_norm]
    heads = {part.num_heads for part in parts if isinstance(part, nn.MultiheadAttention)}
    eps = {part.eps for part in parts if isinstance(part, nn.LayerNorm)}
    return {
        "activation": layer.activation,
        "norm_first": layer.norm_first,
        "bias": layer.linear1.bias is not None,
        "dropout": layer.dropout.p,
        "layer_norm_eps": _one_or_all(eps),
        "nhead": _one_or_all(heads),
        "dim_feedforward": layer.linear1.out_features,
    }


def _one_or_all(values: set[Any]) -> Any:
    """Return the single value, or a tuple of several values."""
    return next(iter(values)) if len(values) == 1 else tuple(values)
