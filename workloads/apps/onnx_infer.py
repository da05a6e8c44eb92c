"""ONNX Runtime, default session options: a small convolution network, one request after the other.

The network is made here from random small integers, and every layer ends in a floor, so all sums are exact in
float32 and the result can be checked against plain integer arithmetic, bit by bit. A default session has an
intra-op pool of its own, one thread per physical core that it reads from /proc/cpuinfo and /sys, pinned, whose
idle threads spin between requests. Its thread count can be set from outside by ORT_INTRA_OP_NUM_THREADS only.
"""

import os

# The 1.31 wheel collects usage data and opens connections to send them, unless told so before the import.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import appkit

ROUNDS = 8000
SIDE = 32
CHANNELS = (3, 32, 32, 64)
CLASSES = 10


def weights(rng):
    """Convolution kernels (out, in, 3, 3) and the matrix of the last layer, of -2 to 2."""
    kernels = [
        rng.integers(-2, 3, (after, before, 3, 3)) for before, after in zip(CHANNELS, CHANNELS[1:])
    ]
    return kernels, rng.integers(-2, 3, (CHANNELS[-1], CLASSES))


def model_bytes(kernels, matrix):
    """The network as a serialised ONNX model: (convolution, relu, / 32, floor) x 3, mean over space, matrix."""
    nodes, stored = [], [numpy_helper.from_array(np.float32(1 / 32), "shrink")]
    name = "image"
    for i, kernel in enumerate(kernels):
        stored.append(numpy_helper.from_array(kernel.astype(np.float32), f"kernel{i}"))
        nodes += [
            helper.make_node("Conv", [name, f"kernel{i}"], [f"conv{i}"], pads=[1, 1, 1, 1]),
            helper.make_node("Relu", [f"conv{i}"], [f"relu{i}"]),
            helper.make_node("Mul", [f"relu{i}", "shrink"], [f"mul{i}"]),
            helper.make_node("Floor", [f"mul{i}"], [f"layer{i}"]),
        ]
        name = f"layer{i}"
    stored.append(numpy_helper.from_array(matrix.astype(np.float32), "matrix"))
    nodes += [
        helper.make_node("ReduceMean", [name], ["mean"], axes=[2, 3], keepdims=0),
        helper.make_node("MatMul", ["mean", "matrix"], ["scores"]),
    ]
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [None, 3, SIDE, SIDE])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, [None, CLASSES])],
        stored,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.checker.check_model(model)
    return model.SerializeToString()


def by_hand(image, kernels, matrix):
    """The same network in int64; scores times the number of pixels."""
    layer = image
    for kernel in kernels:
        padded = np.pad(layer, ((0, 0), (0, 0), (1, 1), (1, 1)))
        layer = sum(
            np.einsum("oc,bcyx->boyx", kernel[:, :, y, x], padded[:, :, y : y + SIDE, x : x + SIDE])
            for y in range(3)
            for x in range(3)
        )
        layer = np.maximum(layer, 0) // 32
    return layer.sum(axis=(2, 3)) @ matrix


def main():
    rng = np.random.default_rng(20261121)
    kernels, matrix = weights(rng)
    before = len(os.listdir("/proc/self/task"))
    session = onnxruntime.InferenceSession(model_bytes(kernels, matrix), providers=["CPUExecutionProvider"])
    # The caller of `run` is a member of the pool, too.
    app = appkit.start("onnx_infer", len(os.listdir("/proc/self/task")) - before + 1)
    images = rng.integers(0, 16, (8, 1, 3, SIDE, SIDE))
    wanted = [by_hand(image, kernels, matrix) for image in images]
    inputs = [image.astype(np.float32) for image in images]
    session.run(None, {"image": inputs[0]})

    app.begin()
    verified, answers = True, {}
    for i in range(app.rounds(ROUNDS)):
        scores = session.run(None, {"image": inputs[i % 8]})[0]
        answers[i % 8] = np.rint(scores.astype(np.float64) * SIDE * SIDE).astype(np.int64)
        verified &= bool((answers[i % 8] == wanted[i % 8]).all())
    app.end()

    app.finish(verified, *(answers[i].tobytes() for i in sorted(answers)))


if __name__ == "__main__":
    main()
