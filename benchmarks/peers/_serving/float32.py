"""A copy of a GGUF file with float32 weights.

Quantised, the sides would not compute the same: llama.cpp quantises activations too.
"""

import numpy as np
from gguf import GGUFReader, GGUFValueType, GGUFWriter, dequantize

OWN = ("general.architecture", "general.file_type")  # the writer adds them itself
FILE_TYPE_F32 = 0


def write_float32(source, target):
    """Write what is in `source` to `target`, each tensor dequantised."""
    reader = GGUFReader(source)
    writer = GGUFWriter(target, reader.fields["general.architecture"].contents())
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key in OWN:
            continue
        element = field.types[1] if field.types[0] == GGUFValueType.ARRAY else None
        writer.add_key_value(key, field.contents(), field.types[0], sub_type=element)
    writer.add_file_type(FILE_TYPE_F32)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
