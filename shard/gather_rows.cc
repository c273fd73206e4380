#include "sherd/shard/gather_rows.h"

#include <algorithm>
#include <array>
#include <exception>
#include <numeric>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/autograd/apply.h"
#include "sherd/autograd/tape.h"
#include "sherd/runtime/base/error.h"
#include "sherd/runtime/kernels/elementwise.h"
#include "sherd/shard/context.h"
#include "sherd/shard/internal/rank_table.h"

namespace sherd {
namespace {

// What ranks tell each other of x. The extents behind follow kExtents.
enum Field : size_t { kDType, kRank, kWantsGrad, kRecords, kRows, kExtents };
constexpr size_t kFields = kExtents + Shape::kMaxRank;

Tensor Contiguous(const Tensor& x) {
  if (x.is_contiguous()) return x;
  const Tensor copy = Tensor::Empty(x.device(), x.dtype(), x.shape());
  kernels::Copy(x, copy);
  return copy;
}

// What one gather needs to know: the lengths, on all ranks.
struct Lengths {
  std::vector<int64_t> rows;  // by rank

  int64_t total() const { return std::accumulate(rows.begin(), rows.end(), int64_t{0}); }
  int64_t most() const { return *std::max_element(rows.begin(), rows.end()); }
  bool equal() const { return most() == *std::min_element(rows.begin(), rows.end()); }
};

Shape WithRows(Shape shape, int64_t rows) {
  shape[0] = rows;
  return shape;
}

class AllGatherRowsOp final : public Op {
 public:
  AllGatherRowsOp(Lengths lengths, ProcessGroup& group)
      : lengths_(std::move(lengths)), group_(group) {}
  std::string_view name() const override { return "all_gather_rows"; }
  OpKind kind() const override { return OpKind::kCollective; }
  void Plan(std::span<const Tensor> in, OpPlan& plan) const override {
    plan.outputs = {{in[0].dtype(), WithRows(in[0].shape(), lengths_.total())}};
  }
  void Forward(OpForward& f) const override {
    const Tensor& out = f.outputs[0];
    const int64_t most = lengths_.most();
    if (most == 0) return;
    const Tensor x = Contiguous(f.inputs[0]);
    if (lengths_.equal()) return group_.AllGather(x.raw(), out.raw(), x.bytes(), What());
    const Shape padded = WithRows(x.shape(), most * group_.size());
    const Tensor all = Tensor::Empty(x.device(), x.dtype(), padded, MemoryCategory::kWorkspace);
    const Tensor own = all.Slice(0, group_.rank() * most, (group_.rank() + 1) * most);
    kernels::Fill(own, 0.0);
    if (x.numel() > 0) kernels::Copy(x, own.Slice(0, 0, x.dim(0)));
    group_.AllGather(own.raw(), all.raw(), own.bytes(), What());
    ForEachPiece([&](int64_t begin, int64_t rows, int64_t staged) {
      kernels::Copy(all.Slice(0, staged, staged + rows), out.Slice(0, begin, begin + rows));
    });
  }
  void Backward(OpBackward& b) const override {
    const Shape& shape = b.input_spec(0).shape;
    const DType dtype = b.input_spec(0).dtype;
    const int64_t most = lengths_.most();
    if (most == 0) return;
    Tensor grad = Contiguous(b.grad());
    if (!lengths_.equal()) {
      const Shape padded = WithRows(shape, most * group_.size());
      const Tensor all = Tensor::Zeros(grad.device(), dtype, padded, MemoryCategory::kWorkspace);
      ForEachPiece([&](int64_t begin, int64_t rows, int64_t staged) {
        kernels::Copy(grad.Slice(0, begin, begin + rows), all.Slice(0, staged, staged + rows));
      });
      grad = all;
    }
    const Tensor sum = Tensor::Empty(grad.device(), dtype, WithRows(shape, most));
    group_.ReduceScatter(grad.raw(), sum.raw(), sum.numel(), dtype, /*add=*/false, What());
    b.Pass(0, sum.Slice(0, 0, shape[0]));
  }

 private:
  static ErrorContext What() { return {.op = "all_gather_rows"}; }
  // Each rank's rows: where they begin in the result, how many, and where in padded staging.
  template <typename Fn>
  void ForEachPiece(const Fn& fn) const {
    const int64_t most = lengths_.most();
    int64_t begin = 0;
    for (size_t r = 0; r < lengths_.rows.size(); ++r) {
      const int64_t rows = lengths_.rows[r];
      if (rows > 0) fn(begin, rows, static_cast<int64_t>(r) * most);
      begin += rows;
    }
  }

  Lengths lengths_;
  ProcessGroup& group_;
};

class AllReduceSumOp final : public Op {
 public:
  explicit AllReduceSumOp(ProcessGroup& group) : group_(group) {}
  std::string_view name() const override { return "all_reduce_sum"; }
  OpKind kind() const override { return OpKind::kCollective; }
  void Plan(std::span<const Tensor> in, OpPlan& plan) const override {
    plan.outputs = {{in[0].dtype(), in[0].shape()}};
  }
  void Forward(OpForward& f) const override { Sum(f.inputs[0], f.outputs[0]); }
  void Backward(OpBackward& b) const override {
    const TensorSpec& spec = b.input_spec(0);
    const Tensor sum = Tensor::Empty(b.grad().device(), spec.dtype, spec.shape);
    Sum(b.grad(), sum);
    b.Pass(0, sum);
  }

 private:
  void Sum(const Tensor& x, const Tensor& sum) const {
    if (x.numel() == 0) return;
    kernels::Copy(x, sum);
    group_.AllReduce(sum.raw(), sum.numel(), sum.dtype(), {.op = "all_reduce_sum"});
  }
  ProcessGroup& group_;
};

// Compares what the ranks gave. Throws on all ranks alike.
void CheckTable(const internal::RankTable& table, bool compares_rows, const ErrorContext& what) {
  const auto refuse = [&](int rank, std::string_view how) {
    ThrowInvalidArgument(absl::StrCat("rank ", rank, " ", std::string(how)), what);
  };
  for (int r = 0; r < table.ranks(); ++r) {
    if (table.at(r, kRank) == 0 && !compares_rows) refuse(r, "gave a scalar, which has no rows");
  }
  if (const int r = table.Differs(kDType); r >= 0) {
    refuse(r, absl::StrCat("gave ", std::string(NameOf(static_cast<DType>(table.at(r, kDType)))),
                           ", rank 0 gave ",
                           std::string(NameOf(static_cast<DType>(table.at(0, kDType))))));
  }
  for (size_t field = compares_rows ? size_t{kRows} : size_t{kExtents}; field < kFields; ++field) {
    int r = table.Differs(field);
    if (r < 0) r = table.Differs(kRank);
    if (r < 0) continue;
    const auto shape_of = [&](int rank) {
      std::string text = compares_rows ? absl::StrCat(table.at(rank, kRows)) : "rows";
      for (int64_t i = 1; i < table.at(rank, kRank); ++i) {
        absl::StrAppend(&text, ", ", table.at(rank, kExtents + static_cast<size_t>(i) - 1));
      }
      return absl::StrCat("[", table.at(rank, kRank) == 0 ? "" : text, "]");
    };
    refuse(r, absl::StrCat("gave ", shape_of(r), ", rank 0 gave ", shape_of(0)));
  }
  if (table.NotZero(kWantsGrad) < 0) return;
  for (int r = 0; r < table.ranks(); ++r) {
    if (table.at(r, kRecords) == 0) {
      refuse(r, absl::StrCat("does not record, rank ", table.NotZero(kWantsGrad),
                             " wants a gradient: its backward would wait for ever"));
    }
  }
}

// Agrees with the other ranks on what they gave, as far as it must be the same.
internal::RankTable Agree(const Variable& x, bool compares_rows, ProcessGroup& group,
                          const char* op, CallSite site) {
  if (!x.defined()) {
    const absl::Status status = absl::InvalidArgumentError("x is undefined");
    group.Abort(status);
    ThrowInvalidArgument("x is undefined", {.op = op, .site = site});
  }
  std::array<int64_t, kFields> mine{};
  const Shape& shape = x.shape();
  mine[kDType] = static_cast<int64_t>(x.dtype());
  mine[kRank] = shape.rank();
  mine[kRecords] = IsRecording() ? 1 : 0;
  mine[kWantsGrad] = IsRecording() && x.requires_grad() ? 1 : 0;
  for (int i = 0; i < shape.rank(); ++i) mine[kRows + static_cast<size_t>(i)] = shape[i];
  internal::RankTable table(mine, group, x.value().device(), op, site);
  CheckTable(table, compares_rows, {.op = op, .site = site});
  return table;
}

// x, which wants a gradient if that of any rank does: every rank's backward has to take part.
Variable Recorded(const Variable& x, const internal::RankTable& table) {
  const bool promote = table.NotZero(kWantsGrad) >= 0 && !x.requires_grad();
  return promote ? Variable::Leaf(x.value()) : x;
}

ProcessGroup& ChannelOf(const Mesh& mesh) { return ShardContext::Of(mesh)->control(); }

}  // namespace

GatheredRows AllGatherRows(const Variable& x, ProcessGroup& group, CallSite site) {
  const internal::RankTable table = Agree(x, false, group, "row_lengths", site);
  GatheredRows gathered;
  gathered.counts = table.Column(kRows);
  const auto own = gathered.counts.begin() + group.rank();
  gathered.begin = std::accumulate(gathered.counts.begin(), own, int64_t{0});
  gathered.rows = ApplyOne(AllGatherRowsOp({gathered.counts}, group), {Recorded(x, table)}, site);
  return gathered;
}

GatheredRows AllGatherRows(const Variable& x, const Mesh& mesh, CallSite site) {
  return AllGatherRows(x, ChannelOf(mesh), site);
}

Tensor GatherRowsOf(const Tensor& x, ProcessGroup& group, CallSite site) {
  return AllGatherRows(Variable(x), group, site).rows.value();
}

Tensor GatherRowsOf(const Tensor& x, const Mesh& mesh, CallSite site) {
  return GatherRowsOf(x, ChannelOf(mesh), site);
}

Variable AllReduceSum(const Variable& x, ProcessGroup& group, CallSite site) {
  const internal::RankTable table = Agree(x, true, group, "shapes_to_sum", site);
  if (!IsFloating(x.dtype())) {
    ThrowInvalidArgument(absl::StrCat("a float tensor is needed, x is ", x.value().ToString()),
                         {.op = "all_reduce_sum", .site = site});
  }
  return ApplyOne(AllReduceSumOp(group), {Recorded(x, table)}, site);
}

Variable AllReduceSum(const Variable& x, const Mesh& mesh, CallSite site) {
  return AllReduceSum(x, ChannelOf(mesh), site);
}

}  // namespace sherd
