using System;
using System.Collections.Generic;

namespace Microsoft.ML.OnnxRuntime
{
    public enum GraphOptimizationLevel
    {
        ORT_DISABLE_ALL = 0,
        ORT_ENABLE_BASIC = 1,
        ORT_ENABLE_EXTENDED = 2,
        ORT_ENABLE_LAYOUT = 3,
        ORT_ENABLE_ALL = 99
    }

    public enum ExecutionMode { ORT_SEQUENTIAL = 0, ORT_PARALLEL = 1 }

    public class OrtCUDAProviderOptions : IDisposable
    {
        public void UpdateOptions(Dictionary<string, string> providerOptions) { }
        public void Dispose() { }
    }

    public class OrtTensorRTProviderOptions : IDisposable
    {
        public void UpdateOptions(Dictionary<string, string> providerOptions) { }
        public void Dispose() { }
    }

    public class SessionOptions : IDisposable
    {
        public int IntraOpNumThreads { get; set; }
        public int InterOpNumThreads { get; set; }
        public ExecutionMode ExecutionMode { get; set; }
        public GraphOptimizationLevel GraphOptimizationLevel { get; set; }
        public bool EnableMemoryPattern { get; set; }
        public bool EnableCpuMemArena { get; set; }
        public void AddSessionConfigEntry(string configKey, string configValue) { }
        public void AddFreeDimensionOverrideByName(string dimName, long dimValue) { }
        public void AppendExecutionProvider(string providerName, Dictionary<string, string> providerOptions = null) { }
        public void AppendExecutionProvider_CUDA(OrtCUDAProviderOptions cudaProviderOptions) { }
        public void AppendExecutionProvider_Tensorrt(OrtTensorRTProviderOptions trtProviderOptions) { }
        public void Dispose() { }
    }

    public enum OrtAllocatorType { DeviceAllocator = 0, ArenaAllocator = 1 }

    public enum OrtMemType { CpuInput = -2, CpuOutput = -1, Cpu = -1, Default = 0 }

    public class OrtMemoryInfo : IDisposable
    {
        public OrtMemoryInfo(string name, OrtAllocatorType type, int deviceId, OrtMemType memory) { }
        public void Dispose() { }
    }

    public class OrtArenaCfg : IDisposable
    {
        public OrtArenaCfg(uint maxMemory, int extendStrategy, int initialChunkBytes, int deadBytes) { }
        public void Dispose() { }
    }

    public class OrtEnv : IDisposable
    {
        public static OrtEnv Instance() { return null; }
        public void CreateAndRegisterAllocator(OrtMemoryInfo memory, OrtArenaCfg arena) { }
        public void Dispose() { }
    }

    public class RunOptions : IDisposable
    {
        public void AddRunConfigEntry(string configKey, string configValue) { }
        public void Dispose() { }
    }

    public class InferenceSession : IDisposable
    {
        public InferenceSession(string modelPath, SessionOptions options) { }
        public void Dispose() { }
    }
}
