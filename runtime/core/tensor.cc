#include "sherd/runtime/core/tensor.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "sherd/runtime/base/error.h"

namespace sherd {
namespace {

void CopyStrided(const char* from, const Shape& shape, const Shape& strides, int dim, int64_t size,
                 char*& to) {
  if (dim == shape.rank()) {
    std::memcpy(to, from, static_cast<size_t>(size));
    to += size;
    return;
  }
  for (int64_t i = 0; i < shape[dim]; ++i) {
    CopyStrided(from + i * strides[dim] * size, shape, strides, dim + 1, size, to);
  }
}

// Fills `strides` with those of a view of shape `to` on elements laid out as (from, from_strides).
// Runs of dimensions that lie one after another are matched from the innermost outwards.
bool StridesOfView(const Shape& from, const Shape& from_strides, const Shape& to, Shape& strides) {
  int j = to.rank() - 1;
  for (int i = from.rank() - 1; i >= 0;) {
    int64_t run = from[i];
    int64_t stride = from_strides[i];
    for (--i; i >= 0 && (from[i] == 1 || from_strides[i] == stride * run); --i) run *= from[i];
    int64_t rest = run;
    while (j >= 0 && (rest > 1 || to[j] == 1)) {
      if (rest % to[j] != 0) return false;
      strides[j] = stride;
      stride *= to[j];
      rest /= to[j--];
    }
    if (rest != 1) return false;
  }
  return true;
}

}  // namespace

Tensor Tensor::Empty(const Device& device, DType dtype, const Shape& shape,
                     MemoryCategory category) {
  Ref<Storage> storage = MakeRef<Storage>(device, shape.numel() * SizeOf(dtype), category);
  storage->Allocate();
  return View(std::move(storage), 0, dtype, shape);
}

Tensor Tensor::Zeros(const Device& device, DType dtype, const Shape& shape,
                     MemoryCategory category) {
  Tensor tensor = Empty(device, dtype, shape, category);
  device.Zero(tensor.raw(), tensor.bytes());
  return tensor;
}

Tensor Tensor::View(Ref<Storage> storage, int64_t offset_elems, DType dtype, const Shape& shape) {
  const int64_t end = (offset_elems + shape.numel()) * SizeOf(dtype);
  if (offset_elems < 0 || end > storage->bytes()) {
    ThrowInvalidArgument(absl::StrCat("a view of ", shape.ToString(), " ",
                                      std::string(NameOf(dtype)), " at element ", offset_elems,
                                      " does not fit a storage of ", storage->bytes(), " bytes"));
  }
  Tensor tensor;
  tensor.storage_ = std::move(storage);
  tensor.offset_ = offset_elems;
  tensor.shape_ = shape;
  tensor.strides_ = shape.ContiguousStrides();
  tensor.dtype_ = dtype;
  return tensor;
}

Tensor Tensor::View(Ref<Storage> storage, int64_t offset_elems, DType dtype, const Shape& shape,
                    const Shape& strides) {
  const int64_t room = storage->bytes() / SizeOf(dtype) - offset_elems;
  bool fits = offset_elems >= 0 && strides.rank() == shape.rank() && room >= 0;
  int64_t last = shape.numel() == 0 ? -1 : 0;  // the furthest element
  for (int i = 0; i < shape.rank() && fits && last >= 0; ++i) {
    const int64_t steps = shape[i] - 1;
    fits = strides[i] >= 0 && (steps == 0 || strides[i] <= (room - last) / steps);
    if (fits) last += steps * strides[i];
  }
  if (!fits || last >= room) {
    ThrowInvalidArgument(absl::StrCat("a view of ", shape.ToString(), " ",
                                      std::string(NameOf(dtype)), " with strides ",
                                      strides.ToString(), " at element ", offset_elems,
                                      " does not fit a storage of ", storage->bytes(), " bytes"));
  }
  Tensor tensor = View(std::move(storage), 0, dtype, Shape{0});
  tensor.offset_ = offset_elems;
  tensor.shape_ = shape;
  tensor.strides_ = strides;
  return tensor;
}

Tensor Tensor::FromHostBytes(const Device& device, DType dtype, const void* values, int64_t count,
                             const Shape& shape, MemoryCategory category) {
  if (count != shape.numel()) {
    ThrowInvalidArgument(
        absl::StrCat(count, " values do not fill a tensor of shape ", shape.ToString()));
  }
  Tensor tensor = Empty(device, dtype, shape, category);
  device.CopyFromHost(tensor.raw(), values, tensor.bytes());
  return tensor;
}

void* Tensor::CheckedData(DType dtype) const {
  SHERD_CHECK(defined(), "an undefined tensor was read");
  SHERD_CHECK(dtype == dtype_, "a tensor was read as another element type");
  if (!storage_->resident()) {
    const int64_t byte_offset = offset_ * SizeOf(dtype_);
    const StorageOwner* owner = storage_->owner();
    ThrowFailedPrecondition(owner != nullptr
                                ? owner->DescribeAbsent(*storage_, byte_offset)
                                : absl::StrCat("a tensor of shape ", shape_.ToString(),
                                               " was read after its memory was freed"));
  }
  if (storage_->watched()) storage_->owner()->OnAccess(*storage_);
  return static_cast<char*>(storage_->data()) + offset_ * SizeOf(dtype_);
}

bool Tensor::is_contiguous() const {
  int64_t stride = 1;
  for (int i = rank() - 1; i >= 0; --i) {
    if (dim(i) == 0) return true;
    if (dim(i) != 1 && strides_[i] != stride) return numel() == 0;
    stride *= dim(i);
  }
  return true;
}

Tensor Tensor::Reshape(const Shape& shape) const {
  Shape strides = shape.ContiguousStrides();
  const bool possible = shape.numel() == numel() &&
                        (is_contiguous() || StridesOfView(shape_, strides_, shape, strides));
  if (!possible) {
    ThrowInvalidArgument(absl::StrCat("cannot view ", ToString(), " as shape ", shape.ToString()),
                         {.op = "reshape"});
  }
  Tensor tensor = *this;
  tensor.shape_ = shape;
  tensor.strides_ = strides;
  return tensor;
}

Tensor Tensor::Slice(int dim, int64_t begin, int64_t end) const {
  if (dim < 0 || dim >= rank() || begin < 0 || end < begin || end > shape_[dim]) {
    ThrowInvalidArgument(
        absl::StrCat("cannot take [", begin, ", ", end, ") of dimension ", dim, " of ", ToString()),
        {.op = "slice"});
  }
  Tensor tensor = *this;
  tensor.offset_ += begin * strides_[dim];
  tensor.shape_[dim] = end - begin;
  return tensor;
}

Tensor Tensor::Transpose(int a, int b) const {
  if (a < 0 || b < 0 || a >= rank() || b >= rank()) {
    ThrowInvalidArgument(
        absl::StrCat("cannot exchange dimensions ", a, " and ", b, " of ", ToString()),
        {.op = "transpose"});
  }
  Tensor tensor = *this;
  std::swap(tensor.shape_[a], tensor.shape_[b]);
  std::swap(tensor.strides_[a], tensor.strides_[b]);
  return tensor;
}

Tensor Tensor::Permute(std::span<const int> order) const {
  uint32_t seen = 0;
  for (int dim : order) {
    if (dim >= 0 && dim < rank()) seen |= 1u << dim;
  }
  if (static_cast<int>(order.size()) != rank() || seen + 1 != 1u << rank()) {
    ThrowInvalidArgument(absl::StrCat("[", absl::StrJoin(order, ", "),
                                      "] is no order of the dimensions of ", ToString()),
                         {.op = "permute"});
  }
  Tensor tensor = *this;
  for (int i = 0; i < rank(); ++i) {
    tensor.shape_[i] = shape_[order[static_cast<size_t>(i)]];
    tensor.strides_[i] = strides_[order[static_cast<size_t>(i)]];
  }
  return tensor;
}

Tensor Tensor::Expand(const Shape& shape) const {
  Tensor tensor = *this;
  tensor.shape_ = shape;
  tensor.strides_ = shape;
  const int lead = shape.rank() - rank();
  bool fits = lead >= 0;
  for (int i = 0; fits && i < shape.rank(); ++i) {
    const bool own = i >= lead && shape_[i - lead] == shape[i];
    fits = own || i < lead || shape_[i - lead] == 1;
    tensor.strides_[i] = own ? strides_[i - lead] : 0;
  }
  if (!fits) {
    ThrowInvalidArgument(absl::StrCat("cannot expand ", ToString(), " to ", shape.ToString()),
                         {.op = "expand"});
  }
  return tensor;
}

void Tensor::CopyToHostBytes(DType dtype, void* out) const {
  const char* from = static_cast<const char*>(CheckedData(dtype));
  if (numel() == 0) return;
  if (is_contiguous()) return device().CopyToHost(out, from, bytes());
  std::vector<char> host;  // all that the view spans, where the elements are a device's
  if (device().backend() != nullptr) {
    int64_t last = 0;
    for (int i = 0; i < rank(); ++i) last += (dim(i) - 1) * strides_[i];
    host.resize(static_cast<size_t>((last + 1) * SizeOf(dtype_)));
    device().CopyToHost(host.data(), from, static_cast<int64_t>(host.size()));
    from = host.data();
  }
  char* to = static_cast<char*>(out);
  CopyStrided(from, shape_, strides_, 0, SizeOf(dtype_), to);
}

void Tensor::CopyItem(DType dtype, void* out) const {
  const void* const from = CheckedData(dtype);
  SHERD_CHECK(numel() == 1, "a tensor of several elements was read as a number");
  device().CopyToHost(out, from, SizeOf(dtype_));
}

std::string Tensor::ToString() const {
  if (!defined()) return "an undefined tensor";
  return absl::StrCat(std::string(NameOf(dtype_)), " ", shape_.ToString(), " on ",
                      device().id().ToString());
}

}  // namespace sherd
