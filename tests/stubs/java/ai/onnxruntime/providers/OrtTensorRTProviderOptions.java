package ai.onnxruntime.providers;

import ai.onnxruntime.OrtException;

public final class OrtTensorRTProviderOptions implements AutoCloseable {
  public OrtTensorRTProviderOptions() throws OrtException {}

  public void add(String key, String value) throws OrtException {}

  @Override
  public void close() {}
}
