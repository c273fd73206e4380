#include "sherd/runtime/kernels/embedding.h"

#include "sherd/runtime/cuda/internal/index_rows.h"
#include "sherd/runtime/cuda/internal/kernels.h"
#include "sherd/runtime/kernels/elementwise.h"

namespace sherd::cuda {

using kernels::internal::RowView;

void Kernels::Embedding(const Tensor& ids, const Tensor& table, const Tensor& out) const {
  SHERD_CHECK(table.rank() == 2 && out.rank() >= 1 && out.shape().back() == table.dim(1) &&
                  (out.numel() == 0 || out.shape().rows() == ids.numel()) &&
                  out.dtype() == table.dtype(),
              "the output of an embedding does not fit its ids and table");
  if (out.numel() == 0) return;
  const Tensor packed = kernels::PackRows(table), packed_ids = kernels::Pack(ids);
  const RowView from = kernels::internal::RowsOf(packed), to = kernels::internal::RowsOf(out);
  const auto bytes = [](const RowView& view) {
    return ByteRows{view.data, view.cols * view.elem_bytes, view.stride * view.elem_bytes};
  };
  LaunchCopyRows(out.device(), bytes(from), bytes(to), packed_ids, 1, FaultOp::kEmbedding,
                 table.dim(0));
}

void Kernels::EmbeddingBackward(const Tensor& grad, const Tensor& ids, const Tensor& grad_table,
                                kernels::Write write) const {
  SHERD_CHECK(grad_table.rank() == 2 && grad.rank() >= 1 &&
                  grad.shape().back() == grad_table.dim(1) &&
                  (grad.numel() == 0 || grad.shape().rows() == ids.numel()),
              "the gradient of an embedding does not fit its ids and table");
  SHERD_CHECK(grad_table.dtype() == grad.dtype() || grad_table.dtype() == DType::kF32,
              "the gradient of a table has neither the dtype of its rows nor f32");
  if (write == kernels::Write::kOverwrite) kernels::Fill(grad_table, 0.0);
  if (grad.numel() == 0) return;
  const Device& device = grad.device();
  const Tensor packed = kernels::PackRows(grad);
  const RowView from = kernels::internal::RowsOf(packed);
  const RowView to = kernels::internal::RowsOf(grad_table);
  const Tensor pairs =
      SortedPairs(device, kernels::Pack(ids), FaultOp::kEmbeddingBackward, grad_table.dim(0));
  WithFloat(grad.dtype(), [&]<typename T>(T) {
    if (grad_table.dtype() == grad.dtype()) {
      LaunchAddRowsOf<Compute<T>, T, T>(device, from, to, pairs, from.rows, 1);
    } else {
      LaunchAddRowsOf<Compute<T>, T, float>(device, from, to, pairs, from.rows, 1);
    }
  });
}

}  // namespace sherd::cuda
