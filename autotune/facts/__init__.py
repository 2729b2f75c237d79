"""What is given: the model, the inputs, the machine, this ONNX Runtime."""
