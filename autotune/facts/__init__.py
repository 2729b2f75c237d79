"""What is given: the model, the inputs, the machine, this ONNX Runtime.

It may import errors, deploy, process and runtimes.
"""
