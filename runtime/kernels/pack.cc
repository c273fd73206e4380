#include "sherd/runtime/kernels/pack.h"

#include "sherd/runtime/kernels/elementwise.h"

namespace sherd::kernels {
namespace {

Tensor CopyOf(const Tensor& x) {
  const Tensor copy = Tensor::Empty(x.device(), x.dtype(), x.shape(), MemoryCategory::kWorkspace);
  Copy(x, copy);
  return copy;
}

}  // namespace

bool IsInnermostPacked(const Tensor& x) {
  return x.rank() == 0 || x.numel() == 0 || x.shape().back() == 1 || x.strides().back() == 1;
}

bool AreRowsPacked(const Tensor& x) {
  if (!IsInnermostPacked(x)) return false;
  int64_t next = -1;  // the stride at which what is outside of the dimensions seen has to lie
  for (int i = x.rank() - 2; i >= 0 && x.numel() != 0; --i) {
    if (x.dim(i) == 1) continue;
    if (next >= 0 && x.strides()[i] != next) return false;
    next = x.strides()[i] * x.dim(i);
  }
  return true;
}

Tensor Pack(const Tensor& x) { return x.is_contiguous() ? x : CopyOf(x); }
Tensor PackInnermost(const Tensor& x) { return IsInnermostPacked(x) ? x : CopyOf(x); }
Tensor PackRows(const Tensor& x) { return AreRowsPacked(x) ? x : CopyOf(x); }

Tensor PackMatrix(const Tensor& x) {
  for (int inner : {1, 0}) {
    const int outer = 1 - inner;
    const bool adjacent = x.dim(inner) <= 1 || x.strides()[inner] == 1;
    if (adjacent && (x.dim(outer) <= 1 || x.strides()[outer] >= x.dim(inner))) return x;
  }
  return CopyOf(x);
}

}  // namespace sherd::kernels
