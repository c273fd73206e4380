#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sherd/runtime/base/ref.h"
#include "sherd/runtime/core/dtype.h"
#include "sherd/runtime/core/shape.h"
#include "sherd/runtime/core/storage.h"

namespace sherd {

// A strided view of a Storage. A handle: cheap to copy, copies share the elements.
//
// Knows nothing of gradients. Element order is row-major; strides are in elements.
// Threads: handles of one tensor may be copied, dropped and read on any thread; who writes elements
// while others use them is the caller's to order.
class Tensor {
 public:
  Tensor() = default;
  // A new tensor with undefined contents. Errors: kResourceExhausted.
  static Tensor Empty(const Device& device, DType dtype, const Shape& shape,
                      MemoryCategory category = MemoryCategory::kActivation);
  // A new tensor of zero bytes.
  static Tensor Zeros(const Device& device, DType dtype, const Shape& shape,
                      MemoryCategory category = MemoryCategory::kActivation);
  // A contiguous view of `storage` that starts at element `offset_elems`. The storage need not be
  // resident. Errors: kInvalidArgument if the view does not fit.
  static Tensor View(Ref<Storage> storage, int64_t offset_elems, DType dtype, const Shape& shape);
  // The same with strides of the caller's, in elements; 0 repeats an extent, for reading. Errors:
  // kInvalidArgument for a negative stride, another number of strides than extents, or an element
  // that lies outside.
  static Tensor View(Ref<Storage> storage, int64_t offset_elems, DType dtype, const Shape& shape,
                     const Shape& strides);
  // A new tensor with a copy of host values. Errors: kInvalidArgument if their number differs.
  template <typename T>
  static Tensor FromHost(const Device& device, std::span<const T> values, const Shape& shape,
                         MemoryCategory category = MemoryCategory::kBuffer) {
    return FromHostBytes(device, DTypeOf<T>, values.data(), static_cast<int64_t>(values.size()),
                         shape, category);
  }

  // False for a default-constructed handle, which has nothing but this, shape() and ToString().
  bool defined() const { return static_cast<bool>(storage_); }
  const Shape& shape() const { return shape_; }
  const Shape& strides() const { return strides_; }
  DType dtype() const { return dtype_; }
  int rank() const { return shape_.rank(); }
  int64_t dim(int i) const { return shape_[i]; }
  int64_t numel() const { return shape_.numel(); }
  int64_t bytes() const { return numel() * SizeOf(dtype_); }
  const Device& device() const { return storage_->device(); }
  // The block this is a view of, and where in it the view starts.
  const Ref<Storage>& storage() const { return storage_; }
  int64_t offset_elems() const { return offset_; }
  // Whether the elements are there to be read.
  bool resident() const { return storage_->resident(); }
  // Whether the elements lie one after another in row-major order.
  bool is_contiguous() const;

  // The first element. Errors: kFailedPrecondition when the storage is absent (the owner says why);
  // kInternal when T is not the element type.
  template <typename T>
  T* data() const {
    return static_cast<T*>(CheckedData(DTypeOf<T>));
  }
  // The first byte, whatever the element type. Errors: as data().
  void* raw() const { return CheckedData(dtype_); }

  // The same elements in another shape, as a view. Dimensions of a strided view may be split, and
  // merged where they lie one after another. Errors: kInvalidArgument if counts differ or no view
  // exists.
  Tensor Reshape(const Shape& shape) const;
  // Elements [begin, end) of dimension `dim`, as a view. Errors: kInvalidArgument for a range
  // outside.
  Tensor Slice(int dim, int64_t begin, int64_t end) const;
  // Dimensions `a` and `b` exchanged, as a view. Errors: kInvalidArgument if one does not exist.
  Tensor Transpose(int a, int b) const;
  // Dimension i of the view is dimension order[i] of this. Errors: kInvalidArgument unless `order`
  // names each dimension once.
  Tensor Permute(std::span<const int> order) const;
  // A view that repeats the elements to fill `shape` by NumPy's rules: dimensions are matched from
  // the innermost outwards, and one that is missing or of extent 1 gets stride 0. Elements of the
  // view share memory: it is for reading. Errors: kInvalidArgument if an extent fits neither.
  Tensor Expand(const Shape& shape) const;
  // A host copy, in row-major order whatever the strides. Errors: kInternal when T does not match.
  template <typename T>
  std::vector<T> ToHost() const {
    std::vector<T> values(static_cast<size_t>(numel()));
    CopyToHostBytes(DTypeOf<T>, values.data());
    return values;
  }

  // The only element. Cost: waits for a device. Errors: kInternal unless there is one, of type T.
  template <typename T>
  T Item() const {
    T value = {};
    CopyItem(DTypeOf<T>, &value);
    return value;
  }

  // "f32 [2, 3] on cpu:0"
  std::string ToString() const;

 private:
  static Tensor FromHostBytes(const Device& device, DType dtype, const void* values, int64_t count,
                              const Shape& shape, MemoryCategory category);
  // The address of the first element, after the checks that data() promises.
  void* CheckedData(DType dtype) const;
  void CopyToHostBytes(DType dtype, void* out) const;
  void CopyItem(DType dtype, void* out) const;

  Ref<Storage> storage_;
  int64_t offset_ = 0;
  Shape shape_;
  Shape strides_;
  DType dtype_ = DType::kF32;
};

}  // namespace sherd
