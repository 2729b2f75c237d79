#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>

struct OrtStatus;
struct OrtSessionOptions;
struct OrtMemoryInfo;
struct OrtArenaCfg;
struct OrtCUDAProviderOptionsV2;
struct OrtTensorRTProviderOptionsV2;
using ORTCHAR_T = char;

enum ExecutionMode { ORT_SEQUENTIAL = 0, ORT_PARALLEL = 1 };
enum GraphOptimizationLevel {
  ORT_DISABLE_ALL = 0,
  ORT_ENABLE_BASIC = 1,
  ORT_ENABLE_EXTENDED = 2,
  ORT_ENABLE_LAYOUT = 3,
  ORT_ENABLE_ALL = 99
};
enum OrtAllocatorType { OrtDeviceAllocator = 0, OrtArenaAllocator = 1 };
enum OrtMemType { OrtMemTypeDefault = 0 };

struct OrtApi {
  OrtStatus* (*AddFreeDimensionOverrideByName)(OrtSessionOptions*, const char*, int64_t);
  OrtStatus* (*SetDeterministicCompute)(OrtSessionOptions*, bool);
  OrtStatus* (*CreateCUDAProviderOptions)(OrtCUDAProviderOptionsV2**);
  OrtStatus* (*UpdateCUDAProviderOptions)(OrtCUDAProviderOptionsV2*, const char* const*,
                                          const char* const*, size_t);
  void (*ReleaseCUDAProviderOptions)(OrtCUDAProviderOptionsV2*);
  OrtStatus* (*CreateTensorRTProviderOptions)(OrtTensorRTProviderOptionsV2**);
  OrtStatus* (*UpdateTensorRTProviderOptions)(OrtTensorRTProviderOptionsV2*, const char* const*,
                                              const char* const*, size_t);
  void (*ReleaseTensorRTProviderOptions)(OrtTensorRTProviderOptionsV2*);
};

namespace Ort {

const OrtApi& GetApi();
void ThrowOnError(OrtStatus* status);

struct MemoryInfo {
  static MemoryInfo CreateCpu(OrtAllocatorType type, OrtMemType memory);
  operator OrtMemoryInfo*() const;
};

struct ArenaCfg {
  ArenaCfg(size_t max_mem, int arena_extend_strategy, int initial_chunk_size_bytes,
           int max_dead_bytes_per_chunk);
  operator OrtArenaCfg*() const;
};

struct Env {
  Env& CreateAndRegisterAllocator(const OrtMemoryInfo* memory, const OrtArenaCfg* arena);
};

struct SessionOptions {
  SessionOptions();
  operator OrtSessionOptions*() const;
  SessionOptions& SetIntraOpNumThreads(int threads);
  SessionOptions& SetInterOpNumThreads(int threads);
  SessionOptions& SetExecutionMode(ExecutionMode mode);
  SessionOptions& SetGraphOptimizationLevel(GraphOptimizationLevel level);
  SessionOptions& DisableMemPattern();
  SessionOptions& DisableCpuMemArena();
  SessionOptions& AddConfigEntry(const char* key, const char* value);
  SessionOptions& AppendExecutionProvider(
      const std::string& name, const std::unordered_map<std::string, std::string>& options = {});
  SessionOptions& AppendExecutionProvider_CUDA_V2(const OrtCUDAProviderOptionsV2& options);
  SessionOptions& AppendExecutionProvider_TensorRT_V2(const OrtTensorRTProviderOptionsV2& options);
};

struct RunOptions {
  RunOptions();
  RunOptions& AddConfigEntry(const char* key, const char* value);
};

struct Session {
  Session(const Env& env, const ORTCHAR_T* path, const SessionOptions& options);
};

}  // namespace Ort
