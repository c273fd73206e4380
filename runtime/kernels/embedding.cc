#include "sherd/runtime/kernels/embedding.h"

#include <cstring>
#include <vector>

#include "sherd/runtime/kernels/elementwise.h"
#include "sherd/runtime/kernels/internal/backend.h"
#include "sherd/runtime/kernels/internal/indices.h"
#include "sherd/runtime/kernels/internal/loops_of.h"
#include "sherd/runtime/kernels/internal/views.h"
#include "sherd/runtime/kernels/pack.h"

namespace sherd::kernels {
namespace {

using internal::RowView;

// Positions of a list of ids, those of one id together and in order.
struct Groups {
  std::vector<int64_t> positions;
  std::vector<int64_t> starts;  // of each group, and the end of the last
};

Groups GroupById(const std::vector<int64_t>& ids) {
  std::vector<std::pair<int64_t, int64_t>> sorted(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) sorted[i] = {ids[i], static_cast<int64_t>(i)};
  std::sort(sorted.begin(), sorted.end());
  Groups groups;
  groups.positions.reserve(ids.size());
  for (size_t i = 0; i < sorted.size(); ++i) {
    if (i == 0 || sorted[i].first != sorted[i - 1].first) {
      groups.starts.push_back(static_cast<int64_t>(i));
    }
    groups.positions.push_back(sorted[i].second);
  }
  groups.starts.push_back(static_cast<int64_t>(ids.size()));
  return groups;
}

}  // namespace

void Embedding(const Tensor& ids, const Tensor& table, const Tensor& out) {
  if (const KernelBackend* const other = BackendOf(out)) {
    return other->Embedding(ids, table, out);
  }
  SHERD_CHECK(table.rank() == 2 && out.rank() >= 1 && out.shape().back() == table.dim(1) &&
                  (out.numel() == 0 || out.shape().rows() == ids.numel()) &&
                  out.dtype() == table.dtype(),
              "the output of an embedding does not fit its ids and table");
  const std::vector<int64_t> rows =
      internal::CheckedIndices(ids, table.dim(0), std::nullopt, "embedding", "id");
  if (out.numel() == 0) return;
  const Tensor packed = PackRows(table);
  const RowView from = internal::RowsOf(packed), to = internal::RowsOf(out);
  out.device().pool().ParallelFor(to.rows, internal::GrainOf(to.cols),
                                  [&](int64_t begin, int64_t end) {
                                    for (int64_t i = begin; i < end; ++i) {
                                      std::memcpy(to.row(i), from.row(rows[static_cast<size_t>(i)]),
                                                  static_cast<size_t>(to.cols * to.elem_bytes));
                                    }
                                  });
}

void EmbeddingBackward(const Tensor& grad, const Tensor& ids, const Tensor& grad_table,
                       Write write) {
  if (const KernelBackend* const other = BackendOf(grad)) {
    return other->EmbeddingBackward(grad, ids, grad_table, write);
  }
  SHERD_CHECK(grad_table.rank() == 2 && grad.rank() >= 1 &&
                  grad.shape().back() == grad_table.dim(1) &&
                  (grad.numel() == 0 || grad.shape().rows() == ids.numel()),
              "the gradient of an embedding does not fit its ids and table");
  const std::vector<int64_t> rows =
      internal::CheckedIndices(ids, grad_table.dim(0), std::nullopt, "embedding_backward", "id");
  if (write == Write::kOverwrite) Fill(grad_table, 0.0);
  if (grad.numel() == 0) return;
  const DType compute = internal::ComputeDType(grad.dtype());
  const auto& cast = internal::LoopsOf(grad.device()).elementwise->cast;
  const auto widen = cast[internal::FloatIndex(grad.dtype())][internal::FloatIndex(compute)];
  const auto narrow = cast[internal::FloatIndex(compute)][internal::FloatIndex(grad_table.dtype())];
  const Tensor packed = PackRows(grad);
  const RowView from = internal::RowsOf(packed), to = internal::RowsOf(grad_table);
  const Groups groups = GroupById(rows);
  const auto count = static_cast<int64_t>(groups.starts.size()) - 1;
  const int64_t sum_bytes = from.cols * SizeOf(compute);
  grad.device().pool().ParallelFor(
      count, internal::GrainOf(from.cols), [&](int64_t begin, int64_t end) {
        const internal::Workspace sum(grad.device(), sum_bytes);
        for (int64_t g = begin; g < end; ++g) {
          const int64_t start = groups.starts[static_cast<size_t>(g)];
          for (int64_t i = start; i < groups.starts[static_cast<size_t>(g) + 1]; ++i) {
            widen(from.row(groups.positions[static_cast<size_t>(i)]), sum.data(), from.cols,
                  i > start);
          }
          const int64_t first = groups.positions[static_cast<size_t>(start)];
          narrow(sum.data(), to.row(rows[static_cast<size_t>(first)]), from.cols, true);
        }
      });
}

}  // namespace sherd::kernels
