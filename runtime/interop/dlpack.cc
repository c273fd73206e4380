#include "sherd/runtime/interop/dlpack.h"

#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/runtime/base/error.h"
#include "sherd/runtime/interop/external.h"

namespace sherd {
namespace {

// The layout is the contract; these are its sizes and offsets where pointers have 64 bits.
static_assert(sizeof(dlpack::Array) == 48 && offsetof(dlpack::Array, shape) == 24);
static_assert(sizeof(dlpack::Managed) == 64 && offsetof(dlpack::Managed, deleter) == 56);
static_assert(sizeof(dlpack::ManagedVersioned) == 80 &&
              offsetof(dlpack::ManagedVersioned, array) == 32);

constexpr char kExport[] = "to_dlpack";
constexpr char kImport[] = "from_dlpack";

void RefuseStream(const DlpackOptions& options, const char* op) {
  if (!options.stream.has_value()) return;
  ThrowInvalidArgument(
      absl::StrCat("stream ", *options.stream, " was given for host memory, which has none"),
      {.op = op});
}

dlpack::DataType TypeOf(DType dtype) {
  const auto bits = static_cast<uint8_t>(8 * SizeOf(dtype));
  if (dtype == DType::kBF16) return {dlpack::kBfloat, bits, 1};
  return {IsFloating(dtype) ? dlpack::kFloat : dlpack::kInt, bits, 1};
}

DType DTypeFrom(const dlpack::DataType& type) {
  for (DType dtype :
       {DType::kF32, DType::kF64, DType::kBF16, DType::kF16, DType::kI32, DType::kI64}) {
    const dlpack::DataType known = TypeOf(dtype);
    if (known.code == type.code && known.bits == type.bits && type.lanes == 1) return dtype;
  }
  ThrowInvalidArgument(absl::StrCat("there is no element type for code ", type.code, " of ",
                                    type.bits, " bits in ", type.lanes, " lanes"),
                       {.op = kImport});
}

// What an exported tensor holds until its deleter runs.
template <typename M>
struct Exported {
  M managed;
  Tensor tensor;
  std::array<int64_t, Shape::kMaxRank> shape{};
  std::array<int64_t, Shape::kMaxRank> strides{};
};

template <typename M>
M* Export(const Tensor& tensor, const DlpackOptions& options) {
  if (!tensor.defined()) ThrowInvalidArgument("an undefined tensor was given", {.op = kExport});
  RefuseStream(options, kExport);
  if (!tensor.resident() ||
      (tensor.storage()->owner() != nullptr && !tensor.storage()->watched())) {
    ThrowFailedPrecondition(absl::StrCat(tensor.ToString(),
                                         " is absent, or its memory comes and goes with the calls "
                                         "of a unit: hand over a copy"),
                            {.op = kExport});
  }
  auto held = std::make_unique<Exported<M>>();
  held->tensor = tensor;
  for (int i = 0; i < tensor.rank(); ++i) {
    held->shape[static_cast<size_t>(i)] = tensor.dim(i);
    held->strides[static_cast<size_t>(i)] = tensor.strides()[i];
  }
  held->managed.array = {.data = tensor.raw(),
                         .device = {dlpack::kCpu, 0},
                         .ndim = tensor.rank(),
                         .dtype = TypeOf(tensor.dtype()),
                         .shape = held->shape.data(),
                         .strides = held->strides.data()};
  held->managed.context = held.get();
  held->managed.deleter = [](M* self) { delete static_cast<Exported<M>*>(self->context); };
  return &held.release()->managed;
}

// The memory of an imported array: `managed` is let go of with it.
template <typename M>
struct Imported {
  explicit Imported(M* managed) : managed(managed) {}
  ~Imported() {
    if (managed != nullptr && managed->deleter != nullptr) managed->deleter(managed);
  }
  Imported(const Imported&) = delete;
  Imported& operator=(const Imported&) = delete;
  M* managed;
};

struct Placed {
  DType dtype;
  Shape shape;
  Shape strides;
  char* first;
  int64_t bytes;  // from the first element to the end of the last
};

Placed PlaceOf(const Device& device, const dlpack::Array& array) {
  if (array.device.type != dlpack::kCpu || device.id().kind != DeviceKind::kCpu) {
    ThrowInvalidArgument(absl::StrCat("memory of DLPack device type ", array.device.type,
                                      " cannot be used on ", device.id().ToString()),
                         {.op = kImport});
  }
  if (array.ndim < 0 || array.ndim > Shape::kMaxRank) {
    ThrowInvalidArgument(absl::StrCat(array.ndim, " dimensions; there can be up to ",
                                      static_cast<int>(Shape::kMaxRank)),
                         {.op = kImport});
  }
  const auto rank = static_cast<size_t>(array.ndim);
  Placed place{DTypeFrom(array.dtype),
               Shape(std::span<const int64_t>(array.shape, rank)),
               {},
               static_cast<char*>(array.data) + array.byte_offset,
               0};
  place.strides = place.shape.ContiguousStrides();
  int64_t last = 0;
  for (int i = 0; i < place.shape.rank() && array.strides != nullptr; ++i) {
    // The stride of an extent of 1 means nothing, and producers write anything there.
    if (place.shape[i] > 1) place.strides[i] = array.strides[i];
    if (place.strides[i] < 0) {
      ThrowInvalidArgument(absl::StrCat("dimension ", i, " of ", place.shape.ToString(),
                                        " has the negative stride ", array.strides[i]),
                           {.op = kImport});
    }
  }
  for (int i = 0; i < place.shape.rank(); ++i) last += (place.shape[i] - 1) * place.strides[i];
  place.bytes = place.shape.numel() == 0 ? 0 : (last + 1) * SizeOf(place.dtype);
  return place;
}

template <typename M>
Tensor Import(const Device& device, M* managed, const DlpackOptions& options) {
  RefuseStream(options, kImport);
  const Placed place = PlaceOf(device, managed->array);
  // Until the tensor stands, an error leaves `managed` to the caller.
  auto holder = std::make_shared<Imported<M>>(nullptr);
  Tensor tensor = WrapMemory(device, place.dtype, place.shape, place.strides,
                             std::shared_ptr<void>(holder, place.first), place.bytes);
  holder->managed = managed;
  return tensor;
}

}  // namespace

dlpack::ManagedVersioned* ToDlpack(const Tensor& tensor, const DlpackOptions& options) {
  return Export<dlpack::ManagedVersioned>(tensor, options);
}

dlpack::Managed* ToDlpackUnversioned(const Tensor& tensor, const DlpackOptions& options) {
  return Export<dlpack::Managed>(tensor, options);
}

Tensor FromDlpack(const Device& device, dlpack::ManagedVersioned* managed,
                  const DlpackOptions& options) {
  if (managed->version.major != dlpack::Version{}.major) {
    ThrowInvalidArgument(absl::StrCat("DLPack version ", managed->version.major, ".",
                                      managed->version.minor, "; known is 1"),
                         {.op = kImport});
  }
  if ((managed->flags & dlpack::kReadOnly) != 0 && !options.accept_read_only) {
    ThrowFailedPrecondition("the memory is read-only; see DlpackOptions::accept_read_only",
                            {.op = kImport});
  }
  return Import(device, managed, options);
}

Tensor FromDlpack(const Device& device, dlpack::Managed* managed, const DlpackOptions& options) {
  return Import(device, managed, options);
}

}  // namespace sherd
