#include "sherd/shard/internal/rank_table.h"

#include <numeric>
#include <string_view>

#include "sherd/autograd/apply.h"

namespace sherd::internal {
namespace {

class RankTableOp final : public Op {
 public:
  RankTableOp(ProcessGroup& group, const char* name) : group_(group), name_(name) {}
  std::string_view name() const override { return name_; }
  OpKind kind() const override { return OpKind::kCollective; }
  void Plan(std::span<const Tensor> in, OpPlan& plan) const override {
    plan.outputs = {{DType::kI64, {group_.size(), in[0].numel()}}};
  }
  void Forward(OpForward& f) const override {
    group_.AllGather(f.inputs[0].raw(), f.outputs[0].raw(), f.inputs[0].bytes(), {.op = name_});
  }
  void Backward(OpBackward&) const override {}

 private:
  ProcessGroup& group_;
  const char* name_;
};

}  // namespace

RankTable::RankTable(std::span<const int64_t> mine, ProcessGroup& group, const Device& device,
                     const char* op, CallSite site)
    : fields_(mine.size()) {
  const Shape shape{static_cast<int64_t>(mine.size())};
  const Variable numbers(Tensor::FromHost<int64_t>(device, mine, shape));
  values_ = ApplyOne(RankTableOp(group, op), {numbers}, site).value().ToHost<int64_t>();
}

std::vector<int64_t> RankTable::Column(size_t field) const {
  std::vector<int64_t> column;
  for (int r = 0; r < ranks(); ++r) column.push_back(at(r, field));
  return column;
}

int64_t RankTable::Sum(size_t field) const {
  const std::vector<int64_t> column = Column(field);
  return std::accumulate(column.begin(), column.end(), int64_t{0});
}

int RankTable::Differs(size_t field) const {
  for (int r = 1; r < ranks(); ++r) {
    if (at(r, field) != at(0, field)) return r;
  }
  return -1;
}

int RankTable::NotZero(size_t field) const {
  for (int r = 0; r < ranks(); ++r) {
    if (at(r, field) != 0) return r;
  }
  return -1;
}

}  // namespace sherd::internal
