"""`vaswani demo`."""

from typing import Annotated, Any

from vaswani.cli.app import app
from vaswani.cli.options import (
    Engine,
    NumBeams,
    language_options,
    model_option,
    number,
    takes_language_options,
    takes_loading_options,
)
from vaswani.cli.screen import begin_work, print_line, warn

DEFAULT_PORT = 7860  # Gradio's


@app.command()
@takes_loading_options
@takes_language_options
def demo(
    model: Annotated[
        list[str],
        model_option(
            "--model",
            help="Folder or Hub name of an encoder-decoder, a classifier, a language model or a model that "
            "answers questions. Several of one kind are shown side by side, such as a teacher and a student.",
        ),
    ],
    port: Annotated[
        int, number("--port", help="Port of 127.0.0.1; 0 takes a free one.", at_least=0, at_most=65535)
    ] = DEFAULT_PORT,
    num_beams: NumBeams = None,
    engine: Engine = "torch",
    **loading: Any,
) -> None:
    """Try models in the browser: a page on this machine only, until Ctrl-C.

    An encoder-decoder translates or summarizes as you type, and shows its
    hypotheses with scores; classifiers show labels with probabilities, models
    that answer questions mark the answer in a text, and language models
    complete texts or fill in masked words.
    """
    from vaswani.demo import build_demo, check_gradio, open_model
    from vaswani.demo.examples import find_examples, find_pairs
    from vaswani.demo.models import PAIR_FIELDS, shown_names
    from vaswani.demo.server import serve, usable_port
    from vaswani.hub.checkpoint import local_folder

    check_gradio()
    usable_port(port)
    names = shown_names(model)
    of_translator = {"num_beams": num_beams, **language_options(loading)}
    begin_work()
    models = {
        shown: open_model(name, engine=engine, translator_options=of_translator, **loading)
        for shown, name in zip(names, model, strict=True)
    }
    folder = local_folder(model[0], loading["revision"])
    fields = PAIR_FIELDS.get(type(models[names[0]]))
    examples = find_examples(folder) if fields is None else find_pairs(folder, *fields)
    serve(build_demo(models, examples), port, print_line)
    warn("stopped")
