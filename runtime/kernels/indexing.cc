#include "sherd/runtime/kernels/indexing.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "sherd/runtime/kernels/elementwise.h"
#include "sherd/runtime/kernels/internal/backend.h"
#include "sherd/runtime/kernels/internal/floats.h"
#include "sherd/runtime/kernels/internal/indices.h"
#include "sherd/runtime/kernels/internal/views.h"
#include "sherd/runtime/kernels/pack.h"

namespace sherd::kernels {
namespace {

using internal::Address;
using internal::FromDouble;
using internal::ToDouble;

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

// Sources in the order of their targets, those of one target together and in their own order.
using Sources = std::vector<std::pair<int64_t, int64_t>>;  // target, source

Sources SortedSources(const int64_t* targets, int64_t count) {
  Sources sources(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) sources[static_cast<size_t>(i)] = {targets[i], i};
  std::sort(sources.begin(), sources.end());
  return sources;
}

// Where the lines along `dim` of an index begin in a tensor of other strides.
class Lines {
 public:
  Lines(const Tensor& index, int dim, const Tensor& x) : dim_(dim), shape_(index.shape()) {
    SHERD_CHECK(index.rank() == x.rank() && dim >= 0 && dim < x.rank(),
                "an index has another rank than its tensor");
    for (int i = 0; i < x.rank(); ++i) {
      SHERD_CHECK(i == dim || index.dim(i) <= x.dim(i), "an index is larger than its tensor");
    }
    count_ = index.numel() == 0 ? 0 : index.numel() / index.dim(dim);
  }

  int64_t count() const { return count_; }
  // The element offset of line `line` with these strides.
  int64_t OffsetOf(int64_t line, const Shape& strides) const {
    int64_t offset = 0;
    for (int i = shape_.rank() - 1; i >= 0; --i) {
      if (i == dim_) continue;
      offset += line % shape_[i] * strides[i];
      line /= shape_[i];
    }
    return offset;
  }

 private:
  int dim_;
  Shape shape_;
  int64_t count_ = 0;
};

template <typename T>
void AddLine(const T* from, int64_t from_stride, const int64_t* targets, int64_t target_stride,
             int64_t count, T* to, int64_t to_stride) {
  std::vector<int64_t> line(static_cast<size_t>(count));
  for (int64_t k = 0; k < count; ++k) line[static_cast<size_t>(k)] = targets[k * target_stride];
  const Sources sources = SortedSources(line.data(), count);
  for (size_t i = 0; i < sources.size();) {
    const int64_t target = sources[i].first;
    double sum = 0.0;
    for (; i < sources.size() && sources[i].first == target; ++i) {
      sum += ToDouble(from[sources[i].second * from_stride]);
    }
    T& element = to[target * to_stride];
    element = FromDouble<T>(ToDouble(element) + sum);
  }
}

template <typename T, typename M>
void WhereRuns(const Tensor& mask, const Tensor& a, const Tensor& b, const Tensor& out, bool add) {
  // What is zero takes out's place in the loop and is not read.
  const Tensor to_mask = mask.Expand(out.shape());
  const Tensor to_a = a.defined() ? a.Expand(out.shape()) : out;
  const Tensor to_b = b.defined() ? b.Expand(out.shape()) : out;
  const internal::RunLoop<4> run({&to_mask, &to_a, &to_b, &out}, 0b0111);
  const bool has_a = a.defined(), has_b = b.defined();
  run.ForEach(out.device().pool(), [&](const auto& at, int64_t n) {
    const M* const chosen = reinterpret_cast<const M*>(at[0]);
    const T* const from_a = reinterpret_cast<const T*>(at[1]);
    const T* const from_b = reinterpret_cast<const T*>(at[2]);
    T* const to = reinterpret_cast<T*>(at[3]);
    for (int64_t i = 0; i < n; ++i) {
      const bool first = chosen[i * run.step(0)] != 0;
      T value = T();
      if (first && has_a) value = from_a[i * run.step(1)];
      if (!first && has_b) value = from_b[i * run.step(2)];
      to[i] = add ? FromDouble<T>(ToDouble(to[i]) + ToDouble(value)) : value;
    }
  });
}

}  // namespace

void IndexSelect(const Tensor& x, int dim, const Tensor& ids, const Tensor& out) {
  if (const KernelBackend* const other = BackendOf(out)) {
    return other->IndexSelect(x, dim, ids, out);
  }
  CheckAlong(x, dim, ids.numel(), out, out);
  const std::vector<int64_t> rows =
      internal::CheckedIndices(ids, x.dim(dim), std::nullopt, "index_select", "id");
  if (out.numel() == 0) return;
  const Tensor packed = Pack(x);
  const Around around = AroundOf(x.shape(), dim);
  const auto count = static_cast<int64_t>(rows.size());
  const int64_t bytes = around.inner * SizeOf(x.dtype());
  const int64_t outer_bytes = x.dim(dim) * bytes;
  out.device().pool().ParallelFor(
      around.outer * count, internal::GrainOf(around.inner), [&](int64_t begin, int64_t end) {
        for (int64_t item = begin; item < end; ++item) {
          const int64_t row = rows[static_cast<size_t>(item % count)];
          std::memcpy(Address(out) + item * bytes,
                      Address(packed) + item / count * outer_bytes + row * bytes,
                      static_cast<size_t>(bytes));
        }
      });
}

void IndexAdd(const Tensor& x, int dim, const Tensor& ids, const Tensor& out, Write write) {
  if (const KernelBackend* const other = BackendOf(out)) {
    return other->IndexAdd(x, dim, ids, out, write);
  }
  CheckAlong(out, dim, ids.numel(), x, out);
  const std::vector<int64_t> rows =
      internal::CheckedIndices(ids, out.dim(dim), std::nullopt, "index_add", "id");
  if (write == Write::kOverwrite) Fill(out, 0.0);
  if (x.numel() == 0) return;
  const Tensor packed = Pack(x);
  const Around around = AroundOf(x.shape(), dim);
  const auto count = static_cast<int64_t>(rows.size());
  const Sources sources = SortedSources(rows.data(), count);
  std::vector<size_t> starts;
  for (size_t i = 0; i < sources.size(); ++i) {
    if (i == 0 || sources[i].first != sources[i - 1].first) starts.push_back(i);
  }
  starts.push_back(sources.size());
  const auto groups = static_cast<int64_t>(starts.size()) - 1;
  const int64_t inner = around.inner, extent = out.dim(dim);
  const auto body = [&]<typename T>(T) {
    const T* const from = static_cast<const T*>(packed.raw());
    T* const to = static_cast<T*>(out.raw());
    const auto run = [&](int64_t begin, int64_t end) {
      std::vector<double> sum(static_cast<size_t>(inner));
      for (int64_t item = begin; item < end; ++item) {
        const int64_t o = item / groups;
        const auto group = static_cast<size_t>(item % groups);
        std::fill(sum.begin(), sum.end(), 0.0);
        for (size_t s = starts[group]; s < starts[group + 1]; ++s) {
          const T* const row = from + (o * count + sources[s].second) * inner;
          for (int64_t c = 0; c < inner; ++c) sum[static_cast<size_t>(c)] += ToDouble(row[c]);
        }
        T* const row = to + (o * extent + sources[starts[group]].first) * inner;
        for (int64_t c = 0; c < inner; ++c) {
          row[c] = FromDouble<T>(ToDouble(row[c]) + sum[static_cast<size_t>(c)]);
        }
      }
    };
    out.device().pool().ParallelFor(around.outer * groups, internal::GrainOf(inner), run);
  };
  internal::WithFloatType(x.dtype(), body);
}

void Gather(const Tensor& x, int dim, const Tensor& index, const Tensor& out) {
  if (const KernelBackend* const other = BackendOf(out)) {
    return other->Gather(x, dim, index, out);
  }
  SHERD_CHECK(out.shape() == index.shape() && out.dtype() == x.dtype(),
              "the output of a gather does not fit its index");
  const Lines lines(index, dim, x);
  const std::vector<int64_t> targets =
      internal::CheckedIndices(index, x.dim(dim), std::nullopt, "gather", "index");
  const Shape index_strides = index.shape().ContiguousStrides();
  const int64_t count = lines.count() == 0 ? 0 : index.dim(dim);
  internal::WithFloatType(x.dtype(), [&]<typename T>(T) {
    const auto run = [&](int64_t begin, int64_t end) {
      for (int64_t line = begin; line < end; ++line) {
        const T* const from = static_cast<const T*>(x.raw()) + lines.OffsetOf(line, x.strides());
        T* const to = static_cast<T*>(out.raw()) + lines.OffsetOf(line, out.strides());
        const int64_t* const ids = targets.data() + lines.OffsetOf(line, index_strides);
        for (int64_t k = 0; k < count; ++k) {
          to[k * out.strides()[dim]] = from[ids[k * index_strides[dim]] * x.strides()[dim]];
        }
      }
    };
    x.device().pool().ParallelFor(lines.count(), internal::GrainOf(count), run);
  });
}

void ScatterAdd(const Tensor& x, int dim, const Tensor& index, const Tensor& out, Write write) {
  if (const KernelBackend* const other = BackendOf(out)) {
    return other->ScatterAdd(x, dim, index, out, write);
  }
  SHERD_CHECK(x.shape() == index.shape() && out.dtype() == x.dtype(),
              "the source of a scatter does not fit its index");
  const Lines lines(index, dim, out);
  const std::vector<int64_t> targets =
      internal::CheckedIndices(index, out.dim(dim), std::nullopt, "scatter_add", "index");
  if (write == Write::kOverwrite) Fill(out, 0.0);
  const Shape index_strides = index.shape().ContiguousStrides();
  const int64_t count = lines.count() == 0 ? 0 : index.dim(dim);
  internal::WithFloatType(x.dtype(), [&]<typename T>(T) {
    const auto run = [&](int64_t begin, int64_t end) {
      for (int64_t line = begin; line < end; ++line) {
        AddLine(
            static_cast<const T*>(x.raw()) + lines.OffsetOf(line, x.strides()), x.strides()[dim],
            targets.data() + lines.OffsetOf(line, index_strides), index_strides[dim], count,
            static_cast<T*>(out.raw()) + lines.OffsetOf(line, out.strides()), out.strides()[dim]);
      }
    };
    x.device().pool().ParallelFor(lines.count(), internal::GrainOf(count), run);
  });
}

void Where(const Tensor& mask, const Tensor& a, const Tensor& b, const Tensor& out, Write write) {
  if (const KernelBackend* const other = BackendOf(out)) {
    return other->Where(mask, a, b, out, write);
  }
  const bool narrow = mask.dtype() == DType::kI32;
  SHERD_CHECK(narrow || mask.dtype() == DType::kI64, "a mask is neither i32 nor i64");
  SHERD_CHECK(
      (!a.defined() || a.dtype() == out.dtype()) && (!b.defined() || b.dtype() == out.dtype()),
      "the operands of a choice differ in dtype");
  const bool add = write == Write::kAdd;
  internal::WithFloatType(out.dtype(), [&]<typename T>(T) {
    narrow ? WhereRuns<T, int32_t>(mask, a, b, out, add)
           : WhereRuns<T, int64_t>(mask, a, b, out, add);
  });
}

}  // namespace sherd::kernels
