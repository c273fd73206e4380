// The one file that knows cuBLASLt.
#include "sherd/runtime/cuda/internal/blas.h"

#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "absl/strings/str_cat.h"
#include "sherd/runtime/base/error.h"
#include "sherd/runtime/cuda/internal/backend.h"

namespace sherd::cuda {
namespace {

using kernels::internal::MatmulProblem;

std::string TextOf(const MatmulProblem& p) {
  return absl::StrCat(std::string(NameOf(p.in_dtype)), " [", p.m, ", ", p.k, "] of strides [",
                      p.a_row, ", ", p.a_col, "] times [", p.k, ", ", p.n, "] of strides [",
                      p.b_row, ", ", p.b_col, "] to ", std::string(NameOf(p.out_dtype)), " rows ",
                      p.out_row, " apart");
}

void CheckBlas(cublasStatus_t answer, const char* call, const MatmulProblem& p) {
  if (answer == CUBLAS_STATUS_SUCCESS) return;
  const bool lacks = answer == CUBLAS_STATUS_NOT_SUPPORTED;
  ThrowError(
      Error(lacks ? absl::StatusCode::kUnimplemented : absl::StatusCode::kInternal,
            absl::StrCat(call, " answers ", cublasLtGetStatusString(answer), " for ", TextOf(p)),
            {.op = "matmul"}));
}

// Owners of what the library makes.
struct Destroy {
  void operator()(cublasLtHandle_t x) const { cublasLtDestroy(x); }
  void operator()(cublasLtMatmulDesc_t x) const { cublasLtMatmulDescDestroy(x); }
  void operator()(cublasLtMatrixLayout_t x) const { cublasLtMatrixLayoutDestroy(x); }
  void operator()(cublasLtMatmulPreference_t x) const { cublasLtMatmulPreferenceDestroy(x); }
};
template <typename Handle>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, Destroy>;

// What belongs to one queue.
struct OfQueue {
  Owned<cublasLtHandle_t> handle;
  void* block = nullptr;  // of the allocator
  void* workspace = nullptr;
};

// What a workspace begins on, which is more than the allocator promises.
constexpr int64_t kWorkspaceAlignment = 256;

// Descriptors and the algorithm of a product; read only once made.
struct Plan {
  Owned<cublasLtMatmulDesc_t> operation;
  Owned<cublasLtMatrixLayout_t> first, second, out;
  cublasLtMatmulAlgo_t algorithm = {};
};

// Everything a plan depends on.
using Key = std::array<int64_t, 14>;

struct KeyHash {
  size_t operator()(const Key& key) const {
    uint64_t hash = 0;
    for (int64_t part : key)
      hash = (hash ^ static_cast<uint64_t>(part)) * 0x9E3779B97F4A7C15u + (hash >> 29);
    return hash;
  }
};

// The largest power of two up to 16 that divides an address: what vector accesses may rely on.
uint32_t AlignmentOf(const void* address) {
  const auto bits = reinterpret_cast<uintptr_t>(address) | 16u;
  return static_cast<uint32_t>(bits & (~bits + 1));
}

Key KeyOf(const MatmulProblem& p) {
  return {p.m,
          p.n,
          p.k,
          p.a_row,
          p.a_col,
          p.b_row,
          p.b_col,
          p.out_row,
          static_cast<int64_t>(p.in_dtype),
          static_cast<int64_t>(p.out_dtype),
          p.add,
          AlignmentOf(p.a),
          AlignmentOf(p.b),
          AlignmentOf(p.out)};
}

cudaDataType_t TypeOf(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return CUDA_R_16BF;
    case DType::kF16:
      return CUDA_R_16F;
    case DType::kF64:
      return CUDA_R_64F;
    default:
      return CUDA_R_32F;
  }
}

// [Note: a product the other way round] The library's matrices lie by columns, ours by rows, and a
// matrix by rows is its transpose by columns. So it is asked for out^T = op(b)^T op(a)^T, with b as
// its first operand: not transposed where the elements of op(b)'s rows are adjacent.
struct Side {
  bool transpose;
  int64_t rows, cols, leading;  // as the library sees what lies in memory
};

// Of op(x) [rows, cols] of these strides.
Side SideOf(int64_t rows, int64_t cols, int64_t row, int64_t col) {
  // Of a single row or column the other stride says nothing.
  const bool by_rows = col == 1 && (row != 1 || cols == 1);
  if (by_rows) return {false, cols, rows, std::max(row, cols)};
  return {true, rows, cols, std::max(col, rows)};
}

class Blas {
 public:
  Blas() = default;
  ~Blas() {
    for (auto& [stream, queue] : queues_) {
      allocator_->Free(queue.block, workspace_bytes_ + kWorkspaceAlignment,
                       MemoryCategory::kWorkspace);
    }
  }
  Blas(const Blas&) = delete;
  Blas& operator=(const Blas&) = delete;

  void Run(const Device& device, const MatmulProblem& p);

 private:
  // Shapes a trainer meets are few; a program that varies them without end starts over here.
  static constexpr size_t kMostPlans = 1024;

  const OfQueue& QueueOf(const Device& device, cudaStream_t stream, const MatmulProblem& p);
  std::shared_ptr<const Plan> PlanOf(const Device& device, cublasLtHandle_t handle,
                                     const MatmulProblem& p);
  std::shared_ptr<const Plan> Make(const Device& device, cublasLtHandle_t handle,
                                   const MatmulProblem& p) const;

  std::mutex mutex_;
  std::map<cudaStream_t, OfQueue> queues_;
  std::unordered_map<Key, std::shared_ptr<const Plan>, KeyHash> plans_;
  CachingAllocator* allocator_ = nullptr;  // outlives the slots of its device
  int64_t workspace_bytes_ = 0;
};

// A queue that ended synchronised, so one that comes by the same address may have its workspace.
const OfQueue& Blas::QueueOf(const Device& device, cudaStream_t stream, const MatmulProblem& p) {
  allocator_ = &device.allocator();
  workspace_bytes_ = int64_t{BackendOf(device).properties().capability >= 90 ? 32 : 4} << 20;
  OfQueue& queue = queues_[stream];
  if (queue.handle == nullptr) {
    cublasLtHandle_t handle = nullptr;
    CheckBlas(cublasLtCreate(&handle), "cublasLtCreate", p);
    queue.handle.reset(handle);
  }
  if (queue.block == nullptr) {
    auto space = static_cast<size_t>(workspace_bytes_ + kWorkspaceAlignment);
    queue.block =
        allocator_->Allocate(workspace_bytes_ + kWorkspaceAlignment, MemoryCategory::kWorkspace);
    queue.workspace = queue.block;
    std::align(kWorkspaceAlignment, static_cast<size_t>(workspace_bytes_), queue.workspace, space);
  }
  return queue;
}

std::shared_ptr<const Plan> Blas::PlanOf(const Device& device, cublasLtHandle_t handle,
                                         const MatmulProblem& p) {
  const Key key = KeyOf(p);
  const auto found = plans_.find(key);
  if (found != plans_.end()) return found->second;
  if (plans_.size() >= kMostPlans) plans_.clear();
  std::shared_ptr<const Plan> made = Make(device, handle, p);
  plans_.emplace(key, made);
  return made;
}

Owned<cublasLtMatrixLayout_t> LayoutOf(DType dtype, int64_t rows, int64_t cols, int64_t leading,
                                       const MatmulProblem& p) {
  cublasLtMatrixLayout_t layout = nullptr;
  CheckBlas(cublasLtMatrixLayoutCreate(&layout, TypeOf(dtype), static_cast<uint64_t>(rows),
                                       static_cast<uint64_t>(cols), leading),
            "cublasLtMatrixLayoutCreate", p);
  return Owned<cublasLtMatrixLayout_t>(layout);
}

Owned<cublasLtMatmulDesc_t> OperationOf(bool tf32, bool turn_first, bool turn_second,
                                        const MatmulProblem& p) {
  const bool f64 = p.in_dtype == DType::kF64;
  const bool fast = tf32 && p.in_dtype == DType::kF32;
  const cublasComputeType_t compute = f64    ? CUBLAS_COMPUTE_64F
                                      : fast ? CUBLAS_COMPUTE_32F_FAST_TF32
                                             : CUBLAS_COMPUTE_32F;
  cublasLtMatmulDesc_t desc = nullptr;
  CheckBlas(cublasLtMatmulDescCreate(&desc, compute, f64 ? CUDA_R_64F : CUDA_R_32F),
            "cublasLtMatmulDescCreate", p);
  Owned<cublasLtMatmulDesc_t> owned(desc);
  const auto turn = [&](cublasLtMatmulDescAttributes_t attribute, bool transpose) {
    const cublasOperation_t op = transpose ? CUBLAS_OP_T : CUBLAS_OP_N;
    CheckBlas(cublasLtMatmulDescSetAttribute(desc, attribute, &op, sizeof(op)),
              "cublasLtMatmulDescSetAttribute", p);
  };
  turn(CUBLASLT_MATMUL_DESC_TRANSA, turn_first);
  turn(CUBLASLT_MATMUL_DESC_TRANSB, turn_second);
  return owned;
}

Owned<cublasLtMatmulPreference_t> PreferenceOf(int64_t workspace_bytes, const MatmulProblem& p) {
  cublasLtMatmulPreference_t preference = nullptr;
  CheckBlas(cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate", p);
  Owned<cublasLtMatmulPreference_t> owned(preference);
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    CheckBlas(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)),
              "cublasLtMatmulPreferenceSetAttribute", p);
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(workspace_bytes));
  // Parts of a sum do not meet in 16 bits.
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, AlignmentOf(p.b));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, AlignmentOf(p.a));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, AlignmentOf(p.out));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, AlignmentOf(p.out));
  return owned;
}

std::shared_ptr<const Plan> Blas::Make(const Device& device, cublasLtHandle_t handle,
                                       const MatmulProblem& p) const {
  const Side first = SideOf(p.k, p.n, p.b_row, p.b_col);
  const Side second = SideOf(p.m, p.k, p.a_row, p.a_col);
  auto plan = std::make_shared<Plan>();
  plan->operation =
      OperationOf(BackendOf(device).properties().tf32, first.transpose, second.transpose, p);
  plan->first = LayoutOf(p.in_dtype, first.rows, first.cols, first.leading, p);
  plan->second = LayoutOf(p.in_dtype, second.rows, second.cols, second.leading, p);
  plan->out = LayoutOf(p.out_dtype, p.n, p.m, std::max(p.out_row, p.n), p);
  const Owned<cublasLtMatmulPreference_t> preference = PreferenceOf(workspace_bytes_, p);
  cublasLtMatmulHeuristicResult_t best = {};
  int count = 0;
  CheckBlas(cublasLtMatmulAlgoGetHeuristic(handle, plan->operation.get(), plan->first.get(),
                                           plan->second.get(), plan->out.get(), plan->out.get(),
                                           preference.get(), 1, &best, &count),
            "cublasLtMatmulAlgoGetHeuristic", p);
  CheckBlas(count > 0 ? best.state : CUBLAS_STATUS_NOT_SUPPORTED, "cublasLtMatmulAlgoGetHeuristic",
            p);
  plan->algorithm = best.algo;
  return plan;
}

void Blas::Run(const Device& device, const MatmulProblem& p) {
  const cudaStream_t stream = BackendOf(device).stream();
  cublasLtHandle_t handle = nullptr;
  void* workspace = nullptr;
  std::shared_ptr<const Plan> plan;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const OfQueue& queue = QueueOf(device, stream, p);
    handle = queue.handle.get();
    workspace = queue.workspace;
    plan = PlanOf(device, handle, p);
  }
  const bool f64 = p.in_dtype == DType::kF64;
  const float one = 1.0f, beta = p.add ? 1.0f : 0.0f;
  const double wide_one = 1.0, wide_beta = p.add ? 1.0 : 0.0;
  CheckBlas(
      cublasLtMatmul(handle, plan->operation.get(),
                     f64 ? static_cast<const void*>(&wide_one) : &one, p.b, plan->first.get(), p.a,
                     plan->second.get(), f64 ? static_cast<const void*>(&wide_beta) : &beta, p.out,
                     plan->out.get(), p.out, plan->out.get(), &plan->algorithm, workspace,
                     static_cast<size_t>(workspace_bytes_), stream),
      "cublasLtMatmul", p);
}

}  // namespace

void MultiplyMatrices(const Device& device, const MatmulProblem& problem) {
  device.Slot<Blas>().Run(device, problem);
}

}  // namespace sherd::cuda
