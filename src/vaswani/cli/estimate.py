"""`vaswani estimate`."""

from typing import TYPE_CHECKING, Annotated

import typer

from vaswani.bounds import MAX_BEAMS
from vaswani.cli.app import app
from vaswani.cli.options import model_option, number
from vaswani.cli.screen import begin_work, print_line
from vaswani.errors import UserError, listing

if TYPE_CHECKING:
    from vaswani.model.stacks import VaswaniPreTrainedModel


@app.command()
def estimate(
    config: Annotated[
        str | None,
        typer.Option(
            "--config",
            metavar="NAME|FILE",
            help="Configuration of a new model: for vaswani train or pretrain, or a model's own config.json.",
        ),
    ] = None,
    model: Annotated[
        str | None, model_option("--model", help="Folder or Hub name of a model, in place of --config.")
    ] = None,
    batch: Annotated[int, number("--batch", help="Rows of a batch.", at_least=1)] = 1,
    source: Annotated[
        int, number("--source", help="Tokens of each source, prompt or text.", at_least=1)
    ] = 128,
    target: Annotated[
        int | None,
        number(
            "--target",
            help="Tokens of each target or continuation. Default: as many as the source. Not for encoders.",
            at_least=1,
        ),
    ] = None,
    num_beams: Annotated[
        int,
        number("--num_beams", help="Hypotheses of each row in decoding.", at_least=1, at_most=MAX_BEAMS),
    ] = 1,
    device: Annotated[
        str,
        typer.Option(
            "--device",
            metavar="cpu|a100|h100|h200|FILE",
            help="Device whose rates to use. cpu measures this machine; a FILE gives peak, bandwidth, memory "
            "and link: vaswani configs show devices/h100 > FILE.",
        ),
    ] = "cpu",
    dtype: Annotated[
        str | None,
        typer.Option(
            "--dtype",
            metavar="float32|bfloat16|float16",
            help="Type of the products, and of the weights in inference. Default: float32 on the cpu, else "
            "bfloat16.",
        ),
    ] = None,
    devices: Annotated[
        int,
        number("--devices", help="Devices that divide each layer (tensor parallelism).", at_least=1),
    ] = 1,
    measure: Annotated[
        bool,
        typer.Option("--measure", help="Also run a model of this shape on this CPU, and time each phase."),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, in bytes and seconds.")
    ] = False,
) -> None:
    """Compute what a model costs: parameters, operations, memory, least time.

    The costs of training, reading and decoding on a device follow from the
    model's arithmetic. The output also says what limits each of them:
    arithmetic, memory or communication.
    """
    from vaswani.files.json_files import finite_json
    from vaswani.insight.arithmetic.devices import CPU, DTYPES, check_device, find_device
    from vaswani.insight.arithmetic.estimate import add_measurements, check_work
    from vaswani.insight.arithmetic.estimate import estimate as compute
    from vaswani.insight.arithmetic.measure import measure as run
    from vaswani.insight.arithmetic.phases import Work
    from vaswani.insight.arithmetic.table import table

    check_device(device)
    on_cpu = device == CPU
    dtype = dtype or ("float32" if on_cpu else "bfloat16")
    if dtype not in DTYPES:
        raise UserError(f"dtype {dtype!r} is unknown; expected {listing(DTYPES)}")
    if measure and not on_cpu:
        raise UserError(f"--measure runs on this CPU, and the device is {device}; leave --device out")
    begin_work()
    shape = _model(config, model)
    usual = 0 if shape.config.model_type == "vaswani_encoder" else source
    asked = usual if target is None else target
    work = Work(batch, source, asked, num_beams, dtype, devices, on_cpu)
    rates = find_device(device, dtype)
    check_work(shape.config, work, rates)
    if measure:
        seconds = run(shape, work, rates)
        rates = rates.or_faster(find_device(device, dtype))  # measured twice: other programs use the machine
    found = compute(shape, work, rates)
    if measure:
        add_measurements(found, seconds)
    print_line(finite_json(found) if as_json else table(found))


def _model(config: str | None, model: str | None) -> "VaswaniPreTrainedModel":
    """Return the model that the options name, without weights."""
    from vaswani.hub.checkpoint import local_folder
    from vaswani.hub.run_metadata import meta_model, read_config
    from vaswani.training.runs.shapes import configured_model

    if (config is None) == (model is None):
        given = "neither" if config is None else "both"
        raise UserError(f"give exactly one of --config and --model, got {given}; vaswani configs lists names")
    if config is not None:
        return configured_model(config)  # type: ignore[return-value]
    return meta_model(read_config(local_folder(str(model), weights=False)))  # type: ignore[return-value]
