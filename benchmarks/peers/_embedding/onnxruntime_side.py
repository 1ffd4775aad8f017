"""ONNX Runtime: a session between two attentions, and attention on the arrays that it is bound to."""

import time

import numpy as np

from _embedding.cells import HEAD_DIM, LAYERS
from pagedcache.interop.onnxruntime import Stage, pool_values


class OnnxRuntimeSide:
    """The session adds 0 to q, so that its own time is small."""

    def __init__(self, setting):
        import onnxruntime
        from onnx import TensorProto, helper, numpy_helper

        width = setting.q[0].size
        info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", width]) for name in "xq"]
        zero = numpy_helper.from_array(np.zeros(1, np.float32), "zero")
        graph = helper.make_graph([helper.make_node("Add", ["x", "zero"], ["q"])], "add", info[:1], info[1:], [zero])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        rows = len(setting.q)
        arrays = {"x": setting.q.reshape(rows, -1).copy(), "q": np.zeros((rows, width), np.float32)}
        self.stage, self.numbers = Stage(session, arrays), (setting.k, setting.v)
        self.q, self.out = arrays["q"].reshape(rows, -1, HEAD_DIM), np.zeros_like(setting.q)
        self.cache, self.ids = setting.cache(threads=1)
        self.values = [pool_values(self.cache, layer) for layer in range(LAYERS)]

    def run(self, steps):
        """Seconds of so many steps."""
        (k, v), rows, taken = self.numbers, len(self.out), 0.0
        for _ in range(steps):
            step = self.cache.extend(self.ids, 1)
            begin = time.perf_counter()
            for layer in range(LAYERS):
                self.stage.run(rows)
                self.cache.attend(layer, self.q, k, v, step, out=self.out)
            taken += time.perf_counter() - begin
            self.cache.abandon(step)
        return taken

    def rest(self, steps):
        """Seconds of the session alone."""
        session, binding = self.stage.session, self.stage._bound[len(self.out)]
        begin = time.perf_counter()
        for _ in range(steps * LAYERS):
            session.run_with_iobinding(binding)
        return time.perf_counter() - begin

    def check(self):
        """The OrtValues are the pool."""
        for layer, values in enumerate(self.values):
            arrays = self.cache.storage.view(layer)
            assert [value.data_ptr() for value in values] == [array.ctypes.data for array in arrays]
        assert self.out.any()
