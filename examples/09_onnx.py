"""Export a model to ONNX and translate with ONNX Runtime, in float32 and int8. Takes a minute.

pip install "vaswani[onnx]"
python examples/01_train_and_translate.py runs/example
python examples/09_onnx.py [MODEL]
"""

import sys
import tempfile
from pathlib import Path

import numpy as np

from vaswani import Translator
from vaswani.interop import export_folder
from vaswani.interop.onnx_runtime import import_onnxruntime

onnxruntime = import_onnxruntime()  # as `import onnxruntime`, without its reports to Microsoft

model = sys.argv[1] if len(sys.argv) > 1 else "runs/example"
lines = ["27. Januar 1999", "samedi 1 mai 2027", "Tuesday, March 3, 2020", "3 de marzo de 2020"]

with tempfile.TemporaryDirectory() as folder:
    exported, small = Path(folder, "exported"), Path(folder, "int8")
    export_folder(model, exported, "onnx")  # the same as `vaswani export MODEL FOLDER --to onnx`
    export_folder(model, small, "onnx", quantization="int8")

    # The same Translator, on another engine: the search, its options and its scores stay as they are.
    translator = Translator.from_pretrained(exported, engine="onnx", num_beams=4)
    for translation in translator.translate(lines):
        best = translation.hypotheses[0]
        print(f"{translation.source}  ->  {best.text}  ({best.log_prob:.3f})")
    expected = Translator.from_pretrained(model, num_beams=4)(lines)
    print("the same as with PyTorch" if translator(lines) == expected else f"PyTorch: {expected}")
    agreeing = Translator.from_pretrained(small, engine="onnx", num_beams=4)(lines)
    print(f"int8: {sum(map(str.__eq__, agreeing, expected))} of {len(lines)} the same")

    # Without this package: the files are plain ONNX, in the layout of Optimum.
    encoder = onnxruntime.InferenceSession(
        exported / "encoder_model.onnx", providers=["CPUExecutionProvider"]
    )
    token_ids = np.array([translator.source_tokenizer(lines[0]).input_ids])
    (states,) = encoder.run(None, {"input_ids": token_ids, "attention_mask": np.ones_like(token_ids)})
    print(f"encoder: {token_ids.shape} token ids -> {states.shape} states")
