#include "sherd/autograd/loss/labels.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "sherd/autograd/apply.h"
#include "sherd/runtime/base/error.h"

namespace sherd {
namespace {

template <typename T>
Tensor CopyTo(const Tensor& x, const Device& device) {
  const std::vector<T> values = x.ToHost<T>();
  return Tensor::FromHost<T>(device, values, x.shape());
}

std::vector<int64_t> Integers(const Tensor& x, std::string_view name) {
  if (!x.defined()) {
    ThrowInvalidArgument(absl::StrCat(std::string(name), " of the batch are undefined"));
  }
  if (x.dtype() == DType::kI64) return x.ToHost<int64_t>();
  if (x.dtype() != DType::kI32) {
    RefuseOperand(absl::StrCat(std::string(name), " are i32 or i64"), name, x);
  }
  const std::vector<int32_t> narrow = x.ToHost<int32_t>();
  return {narrow.begin(), narrow.end()};
}

bool HasDocuments(const LossLabels& labels) {
  return labels.position_ids.defined() || labels.document_ids.defined() ||
         labels.cu_seqlens.defined();
}

// Marks where documents begin within rows of `row` tokens.
class DocumentStarts {
 public:
  DocumentStarts(const LossLabels& labels, const Tensor& like)
      : row_(like.shape().back()), starts_(static_cast<size_t>(like.numel()), false) {
    AddWhere(labels.position_ids, "position_ids", like,
             [](int64_t before, int64_t now) { return now != before + 1; });
    AddWhere(labels.document_ids, "document_ids", like,
             [](int64_t before, int64_t now) { return now != before; });
    if (labels.cu_seqlens.defined()) AddLengths(labels.cu_seqlens, like);
  }

  // Whether token i begins a document that is not the first of its row.
  bool operator[](size_t i) const { return starts_[i]; }

 private:
  template <typename Begins>
  void AddWhere(const Tensor& ids, std::string_view name, const Tensor& like, Begins begins) {
    if (!ids.defined()) return;
    if (!(ids.shape() == like.shape())) {
      RefuseOperands("there is one document of each label", name, ids, "labels", like);
    }
    const std::vector<int64_t> values = Integers(ids, name);
    for (size_t i = 1; i < values.size(); ++i) {
      const bool inside = static_cast<int64_t>(i) % row_ != 0;
      if (inside && begins(values[i - 1], values[i])) starts_[i] = true;
    }
  }

  void AddLengths(const Tensor& cu_seqlens, const Tensor& like) {
    const std::vector<int64_t> ends = Integers(cu_seqlens, "cu_seqlens");
    if (ends.empty() || ends[0] != 0 || !std::is_sorted(ends.begin(), ends.end()) ||
        ends.back() > like.numel()) {
      RefuseOperands(absl::StrCat("cumulative lengths ascend from 0 to at most the number of "
                                  "labels, they are ",
                                  absl::StrJoin(ends, ", ")),
                     "cu_seqlens", cu_seqlens, "labels", like);
    }
    for (int64_t begin : ends) {
      if (begin < like.numel() && begin % row_ != 0) starts_[static_cast<size_t>(begin)] = true;
    }
  }

  const int64_t row_;
  std::vector<bool> starts_;
};

// "[1, 3]" for element i of a shape.
std::string PlaceOf(const Shape& shape, int64_t i) {
  std::vector<int64_t> place(static_cast<size_t>(shape.rank()));
  for (int dim = shape.rank() - 1; dim >= 0; --dim) {
    place[static_cast<size_t>(dim)] = i % shape[dim];
    i /= shape[dim];
  }
  return absl::StrCat("[", absl::StrJoin(place, ", "), "]");
}

void CheckClassesOf(const Tensor& labels, std::string_view what, int64_t classes,
                    int64_t ignore_index) {
  if (!labels.defined()) return;
  const std::vector<int64_t> values = Integers(labels, what);
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] == ignore_index || (values[i] >= 0 && values[i] < classes)) continue;
    ThrowInvalidArgument(absl::StrCat("label ", values[i], " at ",
                                      PlaceOf(labels.shape(), static_cast<int64_t>(i)),
                                      " is outside [0, ", classes, ")"));
  }
}

}  // namespace

const Tensor& LossLabels::Extra(std::string_view name) const {
  std::vector<std::string> names;
  for (const auto& [have, tensor] : extra) {
    if (have == name) return tensor;
    names.push_back(have);
  }
  ThrowInvalidArgument(absl::StrCat("the batch carries no '", std::string(name),
                                    "' (it has: ", absl::StrJoin(names, ", "), ")"));
}

Tensor ToDeviceOf(const Tensor& x, const Tensor& like) {
  if (!x.defined() || x.device() == like.device()) return x;
  switch (x.dtype()) {
    case DType::kI32:
      return CopyTo<int32_t>(x, like.device());
    case DType::kI64:
      return CopyTo<int64_t>(x, like.device());
    case DType::kF64:
      return CopyTo<double>(x, like.device());
    case DType::kF32:
      return CopyTo<float>(x, like.device());
    case DType::kBF16:
      return CopyTo<BFloat16>(x, like.device());
    case DType::kF16:
      return CopyTo<Float16>(x, like.device());
    default:
      RefuseOperands("no copy of this dtype", "x", x, "like", like);
  }
}

Tensor TokenTargets(const LossLabels& labels, LabelMode mode, int64_t ignore_index) {
  const bool shifted = mode == LabelMode::kShifted || labels.shifted_labels.defined();
  const bool causal = mode != LabelMode::kAligned;
  const Tensor& from =
      causal && labels.shifted_labels.defined() ? labels.shifted_labels : labels.labels;
  const bool changes = causal && (!shifted || HasDocuments(labels));
  if (!changes && from.defined() && (from.dtype() == DType::kI64 || from.dtype() == DType::kI32)) {
    return from;
  }
  std::vector<int64_t> targets = Integers(from, "labels");
  if (changes) {
    if (from.rank() < 1) RefuseOperand("labels of a row are needed", "labels", from);
    const auto row = static_cast<size_t>(from.shape().back());
    const DocumentStarts starts(labels, from);
    for (size_t i = 0; i < targets.size(); ++i) {
      const bool last = (i + 1) % row == 0;
      if (!shifted) targets[i] = last ? ignore_index : targets[i + 1];
      if (!last && starts[i + 1]) targets[i] = ignore_index;
    }
  }
  return Tensor::FromHost<int64_t>(from.device(), targets, from.shape());
}

int64_t CountTargets(const Tensor& targets, int64_t ignore_index) {
  const std::vector<int64_t> values = Integers(targets, "labels");
  return std::count_if(values.begin(), values.end(),
                       [&](int64_t label) { return label != ignore_index; });
}

void CheckClasses(const LossLabels& labels, int64_t classes, int64_t ignore_index) {
  CheckClassesOf(labels.labels, "labels", classes, ignore_index);
  CheckClassesOf(labels.shifted_labels, "shifted_labels", classes, ignore_index);
}

}  // namespace sherd
