"""Reading problems from an ONNX model."""
