#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "sherd/runtime/base/error.h"
#include "sherd/runtime/base/thread_pool.h"
#include "sherd/runtime/core/tensor.h"

// What kernels need to know of strides, threads and workspace.
namespace sherd::kernels::internal {

// The index of a float dtype in the tables of loops.
inline int FloatIndex(DType dtype) {
  SHERD_CHECK(IsFloating(dtype), "a kernel was given a dtype that is no float");
  return static_cast<int>(dtype);
}

// The dtype of what a kernel computes beside its output: sums, logs, tables.
inline DType ComputeDType(DType dtype) { return ComputeDTypeOf(dtype); }

inline char* Address(const Tensor& x) { return static_cast<char*>(x.raw()); }

// Elements a thread takes at least, so that starting it is worth while.
inline constexpr int64_t kGrainElems = 32768;

// How many items of `item_elems` elements make a grain.
inline int64_t GrainOf(int64_t item_elems, int64_t grain_elems = kGrainElems) {
  return std::max<int64_t>(1, grain_elems / std::max<int64_t>(1, item_elems));
}

// A tensor as rows of adjacent elements.
struct RowView {
  char* data = nullptr;
  int64_t rows = 0, cols = 0;
  int64_t stride = 0;  // elements between rows
  int64_t elem_bytes = 0;

  char* row(int64_t r) const { return data + r * stride * elem_bytes; }
};

// Merges all dimensions but the last. REQUIRES: rank >= 1, adjacent innermost elements, outer
// strides that amount to one.
inline RowView RowsOf(const Tensor& x) {
  SHERD_CHECK(x.rank() >= 1, "a row-wise kernel was given a scalar");
  RowView view = {Address(x), x.shape().rows(), x.shape().back(), x.shape().back(),
                  SizeOf(x.dtype())};
  if (x.numel() == 0) return view;
  SHERD_CHECK(view.cols == 1 || x.strides().back() == 1, "elements of a row are not adjacent");
  int64_t next = 0;  // stride and extent of what is merged so far
  for (int i = x.rank() - 2; i >= 0; --i) {
    if (x.dim(i) == 1) continue;
    if (next == 0) {
      view.stride = x.strides()[i];
      next = view.stride * x.dim(i);
    } else {
      SHERD_CHECK(x.strides()[i] == next, "rows of a tensor are not evenly spaced");
      next *= x.dim(i);
    }
  }
  return view;
}

// A loop over the elements of kCount tensors of one shape, with as few dimensions as their strides
// allow. The innermost dimension is a run of adjacent elements, or of one. Tensors named in
// `may_repeat` (a bit each) may also repeat one element in a run: their step is then 0.
template <int kCount>
class RunLoop {
 public:
  using Pointers = std::array<char*, kCount>;

  explicit RunLoop(const std::array<const Tensor*, kCount>& tensors, uint32_t may_repeat = 0) {
    step_.fill(1);
    const Shape& shape = tensors[0]->shape();
    for (int n = 0; n < kCount; ++n) {
      SHERD_CHECK(tensors[n]->shape() == shape,
                  "operands of an elementwise kernel differ in shape");
      elem_bytes_[n] = SizeOf(tensors[n]->dtype());
    }
    numel_ = shape.numel();
    if (numel_ == 0) return;
    for (int n = 0; n < kCount; ++n) base_[n] = Address(*tensors[n]);
    for (int i = 0; i < shape.rank(); ++i) {
      if (shape[i] > 1) Append(shape[i], tensors, i);
    }
    bool adjacent = rank_ > 0;
    for (int n = 0; n < kCount && adjacent; ++n) {
      const int64_t stride = stride_[rank_ - 1][n];
      adjacent = stride == 1 || (stride == 0 && (may_repeat >> n & 1u) != 0);
    }
    if (!adjacent) return;
    run_elems_ = extent_[--rank_];
    step_ = stride_[rank_];
  }

  int64_t numel() const { return numel_; }
  int64_t run_elems() const { return run_elems_; }
  int64_t runs() const { return numel_ / run_elems_; }
  // From one element of a run to the next: 1, or 0 for a tensor that repeats.
  int64_t step(int n) const { return step_[static_cast<size_t>(n)]; }

  // The first elements of run `r`.
  Pointers At(int64_t r) const {
    Pointers at = base_;
    for (int i = rank_ - 1; i >= 0; --i) {
      const int64_t index = r % extent_[i];
      r /= extent_[i];
      for (int n = 0; n < kCount; ++n) at[n] += index * stride_[i][n] * elem_bytes_[n];
    }
    return at;
  }

  // Calls f(pointers, elements) for pieces that cover all elements, on the threads of `pool`.
  template <typename F>
  void ForEach(ThreadPool& pool, const F& f) const {
    if (numel_ == 0) return;
    if (rank_ == 0) {
      pool.ParallelFor(run_elems_, kGrainElems, [&](int64_t begin, int64_t end) {
        Pointers at = base_;
        for (int n = 0; n < kCount; ++n) at[n] += begin * step_[n] * elem_bytes_[n];
        f(at, end - begin);
      });
      return;
    }
    pool.ParallelFor(runs(), GrainOf(run_elems_), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) f(At(r), run_elems_);
    });
  }

 private:
  void Append(int64_t extent, const std::array<const Tensor*, kCount>& tensors, int dim) {
    bool merges = rank_ > 0;
    for (int n = 0; n < kCount && merges; ++n) {
      merges = stride_[rank_ - 1][n] == tensors[n]->strides()[dim] * extent;
    }
    if (merges) {
      extent_[rank_ - 1] *= extent;
    } else {
      extent_[rank_++] = extent;
    }
    for (int n = 0; n < kCount; ++n) stride_[rank_ - 1][n] = tensors[n]->strides()[dim];
  }

  int rank_ = 0;  // dimensions outside of the run
  int64_t numel_ = 0;
  int64_t run_elems_ = 1;
  std::array<int64_t, Shape::kMaxRank> extent_{};
  std::array<std::array<int64_t, kCount>, Shape::kMaxRank> stride_{};
  std::array<int64_t, kCount> elem_bytes_{};
  std::array<int64_t, kCount> step_{};
  Pointers base_{};
};

// Scratch memory for the length of a scope.
class Workspace {
 public:
  Workspace(const Device& device, int64_t bytes)
      : device_(device),
        bytes_(bytes),
        data_(device.allocator().Allocate(bytes, MemoryCategory::kWorkspace)) {}
  ~Workspace() {
    if (data_ != nullptr) device_.allocator().Free(data_, bytes_, MemoryCategory::kWorkspace);
  }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  void* data() const { return data_; }

 private:
  const Device& device_;
  int64_t bytes_;
  void* data_;
};

}  // namespace sherd::kernels::internal
