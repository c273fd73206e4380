#include "sherd/runtime/kernels/softmax.h"

#include "sherd/runtime/kernels/internal/backend.h"
#include "sherd/runtime/kernels/internal/loops_of.h"
#include "sherd/runtime/kernels/internal/views.h"
#include "sherd/runtime/kernels/pack.h"

namespace sherd::kernels {
namespace {

using internal::RowView;

void CheckLike(const Tensor& a, const Tensor& b) {
  SHERD_CHECK(a.dtype() == b.dtype() && a.shape() == b.shape() && a.rank() >= 1,
              "operands of a softmax do not fit each other");
}

void Run(void (*loop)(const internal::SoftmaxArgs&), const Tensor& x, const Tensor& out) {
  CheckLike(x, out);
  if (x.numel() == 0) return;
  const Tensor packed = PackRows(x);
  const RowView from = internal::RowsOf(packed), to = internal::RowsOf(out);
  out.device().pool().ParallelFor(from.rows, internal::GrainOf(from.cols),
                                  [&](int64_t begin, int64_t end) {
                                    loop({.x = from.row(begin),
                                          .out = to.row(begin),
                                          .rows = end - begin,
                                          .cols = from.cols,
                                          .x_stride = from.stride,
                                          .out_stride = to.stride});
                                  });
}

void RunBackward(void (*loop)(const internal::SoftmaxBackwardArgs&), const Tensor& grad,
                 const Tensor& y, const Tensor& grad_x, Write write) {
  CheckLike(grad, y);
  CheckLike(grad, grad_x);
  if (grad.numel() == 0) return;
  const Tensor packed_grad = PackRows(grad), packed_y = PackRows(y);
  const RowView from = internal::RowsOf(packed_grad), at = internal::RowsOf(packed_y);
  const RowView to = internal::RowsOf(grad_x);
  grad_x.device().pool().ParallelFor(from.rows, internal::GrainOf(from.cols),
                                     [&](int64_t begin, int64_t end) {
                                       loop({.grad = from.row(begin),
                                             .y = at.row(begin),
                                             .grad_x = to.row(begin),
                                             .rows = end - begin,
                                             .cols = from.cols,
                                             .grad_stride = from.stride,
                                             .y_stride = at.stride,
                                             .grad_x_stride = to.stride,
                                             .add = write == Write::kAdd});
                                     });
}

}  // namespace

void Softmax(const Tensor& x, const Tensor& out) {
  if (const KernelBackend* const other = BackendOf(out)) {
    return other->Softmax(x, out);
  }
  Run(internal::LoopsOf(out.device()).softmax->softmax[internal::FloatIndex(out.dtype())], x, out);
}

void LogSoftmax(const Tensor& x, const Tensor& out) {
  if (const KernelBackend* const other = BackendOf(out)) {
    return other->LogSoftmax(x, out);
  }
  Run(internal::LoopsOf(out.device()).softmax->log_softmax[internal::FloatIndex(out.dtype())], x,
      out);
}

void SoftmaxBackward(const Tensor& grad, const Tensor& y, const Tensor& grad_x, Write write) {
  if (const KernelBackend* const other = BackendOf(grad)) {
    return other->SoftmaxBackward(grad, y, grad_x, write);
  }
  const internal::SoftmaxLoops& loops = *internal::LoopsOf(grad_x.device()).softmax;
  RunBackward(loops.softmax_backward[internal::FloatIndex(grad_x.dtype())], grad, y, grad_x, write);
}

void LogSoftmaxBackward(const Tensor& grad, const Tensor& y, const Tensor& grad_x, Write write) {
  if (const KernelBackend* const other = BackendOf(grad)) {
    return other->LogSoftmaxBackward(grad, y, grad_x, write);
  }
  const internal::SoftmaxLoops& loops = *internal::LoopsOf(grad_x.device()).softmax;
  RunBackward(loops.log_softmax_backward[internal::FloatIndex(grad_x.dtype())], grad, y, grad_x,
              write);
}

}  // namespace sherd::kernels
