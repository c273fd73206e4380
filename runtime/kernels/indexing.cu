#include "sherd/runtime/kernels/indexing.h"

#include "sherd/runtime/cuda/internal/index_rows.h"
#include "sherd/runtime/cuda/internal/kernels.h"
#include "sherd/runtime/cuda/internal/views.h"
#include "sherd/runtime/kernels/elementwise.h"

namespace sherd::cuda {
namespace {

using kernels::internal::RowView;

// Sources along a dimension up to which a thread looks at all of its line, instead of a sort.
constexpr int64_t kShortLine = 64;

// A tensor as [outer, extent of dim, inner].
struct Around {
  int64_t outer = 1, inner = 1;
};

Around AroundOf(const Shape& shape, int dim) {
  Around around;
  for (int i = 0; i < dim; ++i) around.outer *= shape[i];
  for (int i = dim + 1; i < shape.rank(); ++i) around.inner *= shape[i];
  return around;
}

// `part` is what indices choose of `whole`; `out` is the one that is written.
void CheckAlong(const Tensor& whole, int dim, int64_t ids, const Tensor& part, const Tensor& out) {
  SHERD_CHECK(dim >= 0 && dim < whole.rank(), "indices along a dimension that is not there");
  Shape shape = whole.shape();
  shape[dim] = ids;
  SHERD_CHECK(part.shape() == shape && part.dtype() == whole.dtype() && out.is_contiguous(),
              "the output of indices along a dimension does not fit");
}

// A contiguous tensor's rows of `cols` elements.
RowView RowsOfLength(const Tensor& x, int64_t cols) {
  return {kernels::internal::Address(x), cols == 0 ? 0 : x.numel() / cols, cols, cols,
          SizeOf(x.dtype())};
}

// x as `index` sees it: of its shape, the same element all along `dim`.
Tensor UnderIndex(const Tensor& x, const Tensor& index, int dim) {
  SHERD_CHECK(index.rank() == x.rank() && dim >= 0 && dim < x.rank(),
              "an index has another rank than its tensor");
  Shape strides = x.strides();
  for (int i = 0; i < x.rank(); ++i) {
    SHERD_CHECK(i == dim || index.dim(i) <= x.dim(i), "an index is larger than its tensor");
  }
  strides[dim] = 0;
  return Tensor::View(x.storage(), x.offset_elems(), x.dtype(), index.shape(), strides);
}

// Operands of Gather and ScatterAdd: the index, what has its shape, and what it points into.
template <typename T, typename I>
struct PointArgs {
  Elements<3> of;  // of index, values, target
  const I* index;
  const T* from;
  T* to;
  int64_t target_stride;  // along the dimension
  IndexCheck check;
};

template <typename T, typename I>
__global__ void __launch_bounds__(kIndexThreads) GatherKernel(PointArgs<T, I> args) {
  for (int64_t i = int64_t{blockIdx.x} * kIndexThreads + threadIdx.x; i < args.of.numel;
       i += int64_t{gridDim.x} * kIndexThreads) {
    int64_t at[3];
    args.of.OffsetsOf(i, at);
    const int64_t id = args.index[at[0]];
    if (args.check.Passes(id, i)) args.to[at[1]] = args.from[at[2] + id * args.target_stride];
  }
}

// The line along the dimension that a source of ScatterAdd is in: how many there are, and how far
// from one to the next in the tensors and in row-major order.
struct Line {
  int64_t count, index_stride, from_stride, step;
};

// The first source of a target adds up all of them.
template <typename T, typename I>
__global__ void __launch_bounds__(kIndexThreads) ScatterShort(PointArgs<T, I> args, Line line) {
  for (int64_t i = int64_t{blockIdx.x} * kIndexThreads + threadIdx.x; i < args.of.numel;
       i += int64_t{gridDim.x} * kIndexThreads) {
    int64_t at[3];
    args.of.OffsetsOf(i, at);
    const int64_t id = args.index[at[0]], place = i / line.step % line.count;
    if (!args.check.Passes(id, i)) continue;
    bool first = true;
    for (int64_t k = 1; k <= place && first; ++k) {
      first = args.index[at[0] - k * line.index_stride] != id;
    }
    if (!first) continue;
    double sum = 0.0;
    for (int64_t k = 0; k < line.count - place; ++k) {
      if (args.index[at[0] + k * line.index_stride] != id) continue;
      sum += static_cast<double>(Widen(args.from[at[1] + k * line.from_stride]));
    }
    Put<true>(args.to + at[2] + id * args.target_stride, sum);
  }
}

// Keys of (the target's element, counted in memory from the tensor's first; source).
template <typename T, typename I>
__global__ void __launch_bounds__(kIndexThreads)
    MakeTargetKeys(PointArgs<T, I> args, int64_t padded, uint64_t* keys) {
  for (int64_t i = int64_t{blockIdx.x} * kIndexThreads + threadIdx.x; i < padded;
       i += int64_t{gridDim.x} * kIndexThreads) {
    keys[i] = kLastKey;
    if (i >= args.of.numel) continue;
    int64_t at[3];
    args.of.OffsetsOf(i, at);
    const int64_t id = args.index[at[0]];
    if (!args.check.Passes(id, i)) continue;
    keys[i] = KeyOf(at[2] + id * args.target_stride, i, args.of.numel);
  }
}

template <typename T, typename I>
__global__ void __launch_bounds__(kIndexThreads)
    ScatterGroups(PointArgs<T, I> args, const uint64_t* keys) {
  for (int64_t i = int64_t{blockIdx.x} * kIndexThreads + threadIdx.x; i < args.of.numel;
       i += int64_t{gridDim.x} * kIndexThreads) {
    const Group group = GroupAt(keys, i, args.of.numel);
    if (group.id < 0) continue;
    const uint64_t first_key = KeyOf(group.id, 0, args.of.numel);
    double sum = 0.0;
    for (int64_t k = i; k < group.end; ++k) {
      int64_t at[3];
      args.of.OffsetsOf(static_cast<int64_t>(keys[k] - first_key), at);
      sum += static_cast<double>(Widen(args.from[at[1]]));
    }
    Put<true>(args.to + group.id, sum);
  }
}

template <typename T, typename I>
PointArgs<T, I> PointArgsFor(const Tensor& index, const Tensor& values, const Tensor& target,
                             int dim, FaultOp op) {
  // Into an empty target no index is right, and it is not looked at.
  const Tensor under = target.numel() == 0 ? index : UnderIndex(target, index, dim);
  return {Elements<3>({&index, &values, &under}),
          static_cast<const I*>(index.raw()),
          nullptr,
          nullptr,
          target.strides()[dim],
          {BackendOf(index.device()).fault(), op, target.dim(dim)}};
}

// The elements of memory that a tensor spans.
int64_t SpanOf(const Tensor& x) {
  if (x.numel() == 0) return 0;
  int64_t last = 0;
  for (int i = 0; i < x.rank(); ++i) last += (x.dim(i) - 1) * x.strides()[i];
  return last + 1;
}

struct WhereArgs {
  Elements<4> of;  // of mask, a, b, out
  const void* mask;
  const void* a;  // null: zero
  const void* b;
  void* out;
  bool add;
};

template <typename T, typename M>
__global__ void __launch_bounds__(kIndexThreads) WhereKernel(WhereArgs args) {
  for (int64_t i = int64_t{blockIdx.x} * kIndexThreads + threadIdx.x; i < args.of.numel;
       i += int64_t{gridDim.x} * kIndexThreads) {
    int64_t at[4];
    args.of.OffsetsOf(i, at);
    const bool first = static_cast<const M*>(args.mask)[at[0]] != 0;
    const T* const from = static_cast<const T*>(first ? args.a : args.b);
    T value = {};
    if (from != nullptr) value = from[first ? at[1] : at[2]];
    T* const out = static_cast<T*>(args.out) + at[3];
    if (args.add) {
      Put<true>(out, Widen(value));
    } else {
      *out = value;
    }
  }
}

}  // namespace

void Kernels::IndexSelect(const Tensor& x, int dim, const Tensor& ids, const Tensor& out) const {
  CheckAlong(x, dim, ids.numel(), out, out);
  if (out.numel() == 0) return;
  const Tensor packed = kernels::Pack(x), packed_ids = kernels::Pack(ids);
  const Around around = AroundOf(x.shape(), dim);
  const int64_t bytes = around.inner * SizeOf(x.dtype());
  LaunchCopyRows(out.device(), {kernels::internal::Address(packed), bytes, bytes},
                 {kernels::internal::Address(out), bytes, bytes}, packed_ids, around.outer,
                 FaultOp::kIndexSelect, x.dim(dim));
}

void Kernels::IndexAdd(const Tensor& x, int dim, const Tensor& ids, const Tensor& out,
                       kernels::Write write) const {
  CheckAlong(out, dim, ids.numel(), x, out);
  if (write == kernels::Write::kOverwrite) kernels::Fill(out, 0.0);
  if (x.numel() == 0) return;
  const Tensor packed = kernels::Pack(x);
  const Around around = AroundOf(x.shape(), dim);
  const Tensor pairs =
      SortedPairs(out.device(), kernels::Pack(ids), FaultOp::kIndexAdd, out.dim(dim));
  if (out.numel() == 0) return;
  WithFloat(x.dtype(), [&]<typename T>(T) {
    LaunchAddRowsOf<double, T, T>(out.device(), RowsOfLength(packed, around.inner),
                                  RowsOfLength(out, around.inner), pairs, ids.numel(),
                                  around.outer);
  });
}

void Kernels::Gather(const Tensor& x, int dim, const Tensor& index, const Tensor& out) const {
  SHERD_CHECK(out.shape() == index.shape() && out.dtype() == x.dtype(),
              "the output of a gather does not fit its index");
  WithFloat(x.dtype(), [&]<typename T>(T) {
    WithIndex(index.dtype(), [&]<typename I>(I) {
      if (index.numel() == 0) return;
      PointArgs<T, I> args = PointArgsFor<T, I>(index, out, x, dim, FaultOp::kGather);
      args.from = static_cast<const T*>(x.raw());
      args.to = static_cast<T*>(out.raw());
      Launch(out.device(),
             {.grid = GridFor(out.device(), index.numel(), kIndexThreads), .block = kIndexThreads},
             &GatherKernel<T, I>, args);
    });
  });
}

void Kernels::ScatterAdd(const Tensor& x, int dim, const Tensor& index, const Tensor& out,
                         kernels::Write write) const {
  SHERD_CHECK(x.shape() == index.shape() && out.dtype() == x.dtype(),
              "the source of a scatter does not fit its index");
  if (write == kernels::Write::kOverwrite) kernels::Fill(out, 0.0);
  const Device& device = out.device();
  WithFloat(x.dtype(), [&]<typename T>(T) {
    WithIndex(index.dtype(), [&]<typename I>(I) {
      if (index.numel() == 0) return;
      PointArgs<T, I> args = PointArgsFor<T, I>(index, x, out, dim, FaultOp::kScatterAdd);
      args.from = static_cast<const T*>(x.raw());
      args.to = static_cast<T*>(out.raw());
      const LaunchShape shape = {.grid = GridFor(device, index.numel(), kIndexThreads),
                                 .block = kIndexThreads};
      if (index.dim(dim) <= kShortLine) {
        const Line line = {index.dim(dim), index.strides()[dim], x.strides()[dim],
                           AroundOf(index.shape(), dim).inner};
        Launch(device, shape, &ScatterShort<T, I>, args, line);
        return;
      }
      const Tensor memory = EmptyKeys(device, index.numel(), SpanOf(out));
      auto* const keys = static_cast<uint64_t*>(memory.raw());
      Launch(device, shape, &MakeTargetKeys<T, I>, args, memory.numel(), keys);
      SortKeys(device, keys, memory.numel());
      Launch(device, shape, &ScatterGroups<T, I>, args, keys);
    });
  });
}

void Kernels::Where(const Tensor& mask, const Tensor& a, const Tensor& b, const Tensor& out,
                    kernels::Write write) const {
  SHERD_CHECK(
      (!a.defined() || a.dtype() == out.dtype()) && (!b.defined() || b.dtype() == out.dtype()),
      "the operands of a choice differ in dtype");
  // What is zero takes out's place and is not read.
  const Tensor to_mask = mask.Expand(out.shape());
  const Tensor to_a = a.defined() ? a.Expand(out.shape()) : out;
  const Tensor to_b = b.defined() ? b.Expand(out.shape()) : out;
  const WhereArgs args = {Elements<4>({&to_mask, &to_a, &to_b, &out}),
                          to_mask.raw(),
                          a.defined() ? to_a.raw() : nullptr,
                          b.defined() ? to_b.raw() : nullptr,
                          out.raw(),
                          write == kernels::Write::kAdd};
  WithFloat(out.dtype(), [&]<typename T>(T) {
    WithIndex(mask.dtype(), [&]<typename M>(M) {
      Launch(out.device(),
             {.grid = GridFor(out.device(), out.numel(), kIndexThreads), .block = kIndexThreads},
             &WhereKernel<T, M>, args);
    });
  });
}

}  // namespace sherd::cuda
