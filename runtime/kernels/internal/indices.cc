#include "sherd/runtime/kernels/internal/indices.h"

#include "absl/strings/str_cat.h"
#include "sherd/runtime/base/error.h"
#include "sherd/runtime/kernels/pack.h"

namespace sherd::kernels::internal {
namespace {

template <typename T>
void Append(const Tensor& indices, std::vector<int64_t>& to) {
  const T* const values = indices.data<T>();
  to.assign(values, values + indices.numel());
}

}  // namespace

std::vector<int64_t> CheckedIndices(const Tensor& indices, int64_t limit,
                                    std::optional<int64_t> ignored, std::string_view op,
                                    std::string_view what) {
  SHERD_CHECK(indices.dtype() == DType::kI32 || indices.dtype() == DType::kI64,
              "indices are neither i32 nor i64");
  std::vector<int64_t> values;
  if (indices.numel() == 0) return values;
  const Tensor packed = Pack(indices);
  packed.dtype() == DType::kI32 ? Append<int32_t>(packed, values) : Append<int64_t>(packed, values);
  for (size_t i = 0; i < values.size(); ++i) {
    int64_t& value = values[i];
    if (ignored && value == *ignored) {
      value = -1;
    } else if (value < 0 || value >= limit) {
      ThrowInvalidArgument(absl::StrCat(std::string(what), " ", value, " at index ", i,
                                        " is outside [0, ", limit, ")"),
                           {.op = std::string(op)});
    }
  }
  return values;
}

}  // namespace sherd::kernels::internal
