package ai.onnxruntime;

import ai.onnxruntime.providers.OrtCUDAProviderOptions;
import ai.onnxruntime.providers.OrtTensorRTProviderOptions;
import java.util.Map;

public class OrtSession {
  public static class SessionOptions implements AutoCloseable {
    public enum OptLevel {
      NO_OPT,
      BASIC_OPT,
      EXTENDED_OPT,
      ALL_OPT
    }

    public enum ExecutionMode {
      SEQUENTIAL,
      PARALLEL
    }

    public void setExecutionMode(ExecutionMode mode) throws OrtException {}

    public void setOptimizationLevel(OptLevel level) throws OrtException {}

    public void setInterOpNumThreads(int numThreads) throws OrtException {}

    public void setIntraOpNumThreads(int numThreads) throws OrtException {}

    public void setMemoryPatternOptimization(boolean value) throws OrtException {}

    public void setCPUArenaAllocator(boolean useArena) throws OrtException {}

    public void setSymbolicDimensionValue(String name, long value) throws OrtException {}

    public void addConfigEntry(String key, String value) throws OrtException {}

    public void addCUDA(OrtCUDAProviderOptions options) throws OrtException {}

    public void addTensorrt(OrtTensorRTProviderOptions options) throws OrtException {}

    public void addXnnpack(Map<String, String> options) throws OrtException {}

    @Override
    public void close() {}
  }

  public static class RunOptions implements AutoCloseable {
    public void addRunConfigEntry(String key, String value) throws OrtException {}

    @Override
    public void close() {}
  }
}
