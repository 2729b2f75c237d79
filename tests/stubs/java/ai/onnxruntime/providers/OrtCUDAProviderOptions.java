package ai.onnxruntime.providers;

import ai.onnxruntime.OrtException;

public final class OrtCUDAProviderOptions implements AutoCloseable {
  public OrtCUDAProviderOptions() throws OrtException {}

  public void add(String key, String value) throws OrtException {}

  @Override
  public void close() {}
}
