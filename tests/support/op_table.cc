// The checks of the op table.

#include "tests/support/op_table.h"

#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <set>
#include <utility>

#include "sherd/autograd/gradcheck.h"
#include "sherd/runtime/base/error.h"
#include "tests/support/accelerator.h"
#include "tests/support/golden.h"
#include "tests/support/op_table_internal.h"
#include "tests/support/wide_host.h"

namespace sherd::testing {
namespace {

using op_table::CastTo;
using op_table::Doubles;
using op_table::HasLayout;
using op_table::InLayout;
using op_table::MakeOperand;
using op_table::Packed;

// The dtypes beside f64 that every row is checked in, and the distance of 1 to the next number.
struct CheckedDType {
  DType dtype;
  double epsilon;
};
constexpr CheckedDType kF64 = {DType::kF64, 0x1p-52};
constexpr CheckedDType kLowDTypes[] = {
    {DType::kF32, 0x1p-23},
    {DType::kBF16, 0x1p-7},
    {DType::kF16, 0x1p-10},
};

// The place that stands for the gradient that comes in; SEED_PLACE of golden.py.
constexpr int kSeedPlace = 99;

// Of f32 gradients kept in bf16: two roundings, where there are two contributions.
constexpr double kKeptNarrow = 5e-3;

// Epsilons of f64 between two backends, whose sums have other orders; in other dtypes twice the
// row's own bound, which was measured on the CPU.
constexpr double kOtherBackend = 64.0;

// Rounding of sums taken in another order.
constexpr double kReordered = 1e-14;

using Places = std::vector<size_t>;

// What one application gave; `grads` has a tensor for each operand, undefined where none was
// wanted.
struct Run {
  Tensor out;
  std::vector<Tensor> grads;
};

// ||a - b|| / ||b||; the norm of a where b is zero; NaN if anything is.
double RelativeError(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return std::nan("");
  double difference = 0.0, norm = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return std::sqrt(norm == 0.0 ? difference : difference / norm);
}

// Keeps the worst error of each column, and fails the test for what is beyond its bound.
class Report {
 public:
  explicit Report(std::string row) : row_(std::move(row)) {}

  void Note(const std::string& column, double error, double bound, const std::string& what) {
    double& worst = Column(column);
    if (!(error <= worst)) worst = error;
    if (!(error <= bound)) {
      ADD_FAILURE() << row_ << ", " << column << ": " << what << ": error " << error << ", bound "
                    << bound;
    }
  }

  // Compares a value and gradients. `what` says what was varied.
  void Compare(const std::string& column, const Run& run, const Run& want, double bound,
               const std::string& what, double unit = 1.0) {
    if (!(run.out.shape() == want.out.shape())) {
      ADD_FAILURE() << row_ << ", " << column << ": " << what << ": the shape is "
                    << run.out.shape().ToString() << ", not " << want.out.shape().ToString();
      return;
    }
    const auto error = [&](const Tensor& a, const Tensor& b) {
      return RelativeError(Doubles(a), Doubles(b)) / unit;
    };
    Note(column, error(run.out, want.out), bound, what + ", value");
    for (size_t k = 0; k < run.grads.size(); ++k) {
      if (!run.grads[k].defined() || !want.grads[k].defined()) {
        if (run.grads[k].defined()) ADD_FAILURE() << row_ << ": gradient " << k << " is not wanted";
        continue;
      }
      Note(column, error(run.grads[k], want.grads[k]), bound,
           what + ", gradient " + std::to_string(k));
    }
  }

  void Print() const {
    std::printf("%-34s", row_.c_str());
    for (const auto& [column, worst] : columns_) std::printf("  %s %.1e", column.c_str(), worst);
    std::printf("\n");
  }

 private:
  double& Column(const std::string& name) {
    for (auto& [column, worst] : columns_) {
      if (column == name) return worst;
    }
    return columns_.emplace_back(name, 0.0).second;
  }

  std::string row_;
  std::vector<std::pair<std::string, double>> columns_;
};

class RowCheck {
 public:
  explicit RowCheck(const OpRow& row) : row_(row), report_(row.name) {
    for (size_t i = 0; i < row.operands.size(); ++i) {
      if (IsFloating(row.operands[i].dtype) && row.operands[i].wants_grad) wanted_.push_back(i);
    }
  }

  void RunAll() {
    const std::vector<Tensor> tensors = Tensors(DType::kF64);
    const Run full = Apply(tensors, wanted_);
    for (size_t i : wanted_) {
      EXPECT_TRUE(full.grads[i].defined()) << row_.name << ": operand " << i << " has no gradient";
      if (!full.grads[i].defined()) return;
    }
    if (row_.smooth && !row_.random) Differences(tensors, {});
    if (!row_.golden.empty()) Golden(full);
    Alone(tensors, full);
    if (!row_.random) Again(tensors, full);
    if (row_.twice) Twice();
    Layouts(kF64);
    for (const CheckedDType& low : kLowDTypes) {
      Layouts(low);
      Against64(low);
      AsParameters(low);
    }
    report_.Print();
  }

  // The other backend, against f64 on the CPU.
  void RunOn(const Device& device) {
    OnDevice(device, kF64);
    for (const CheckedDType& low : kLowDTypes) OnDevice(device, low);
    report_.Print();
  }

 private:
  std::vector<Tensor> Tensors(DType dtype) const {
    std::vector<Tensor> tensors;
    for (size_t i = 0; i < row_.operands.size(); ++i) {
      tensors.push_back(MakeOperand(row_.operands[i], static_cast<int>(i), dtype));
    }
    return tensors;
  }

  static Tensor Seed(const Variable& result, DType rounded) {
    const Tensor seed = MakeOperand(Normal(result.shape()), kSeedPlace, rounded);
    return CastTo(CastTo(seed, DType::kF64), result.dtype());
  }

  struct ApplyOptions {
    int times = 1;
    DType seed_dtype = DType::kF64;
    const Layout* seed_layout = nullptr;              // of the gradient that comes in
    bool expand_seed = false;                         // the values of kExpanded, but contiguous
    const Device* device = nullptr;                   // where the operands are; null: the CPU
    std::vector<std::pair<size_t, size_t>> one = {};  // the second operand is the first
    WideHost* host = nullptr;                         // of what wants a gradient
  };

  // Applies the function to leaves and constants of these tensors, and runs backward.
  Run Apply(const std::vector<Tensor>& tensors, const Places& wanted) const {
    return Apply(tensors, wanted, ApplyOptions());
  }
  Run Apply(const std::vector<Tensor>& tensors, const Places& wanted,
            const ApplyOptions& options) const {
    std::vector<Variable> variables(tensors.begin(), tensors.end());
    std::vector<Parameter> parameters(tensors.size());
    for (size_t i : wanted) {
      if (options.host != nullptr) parameters[i] = options.host->Add(tensors[i]);
      variables[i] = options.host != nullptr ? Variable(parameters[i]) : Variable::Leaf(tensors[i]);
    }
    for (const auto& [from, to] : options.one) variables[to] = variables[from];
    Tape tape;
    std::vector<Variable> results;
    {
      const Recording on(tape, row_.recording);
      for (int i = 0; i < options.times; ++i) results.push_back(row_.function(variables));
    }
    Run run = {results[0].value(), std::vector<Tensor>(tensors.size())};
    Tensor seed = Seed(results[0], options.seed_dtype);
    if (options.seed_layout != nullptr) seed = InLayout(seed, *options.seed_layout);
    const bool expand = options.expand_seed && HasLayout(seed.shape(), Layout::kExpanded);
    if (expand) seed = Packed(InLayout(seed, Layout::kExpanded));
    if (options.device != nullptr) seed = MoveTo(*options.device, seed);
    tape.Backward(results, std::vector<Tensor>(results.size(), seed));
    for (size_t i : wanted) {
      run.grads[i] =
          options.host != nullptr ? options.host->grad(parameters[i]) : variables[i].grad();
    }
    return run;
  }

  void Differences(const std::vector<Tensor>& tensors,
                   const std::vector<std::pair<size_t, size_t>>& one) {
    std::vector<Tensor> inputs;
    Places places;
    for (size_t i : wanted_) {
      if (!one.empty() && one[0].second == i) continue;
      places.push_back(i);
      inputs.push_back(tensors[i]);
    }
    const auto function = [&](OpInputs in) {
      std::vector<Variable> variables(tensors.begin(), tensors.end());
      for (size_t k = 0; k < places.size(); ++k) variables[places[k]] = in[k];
      for (const auto& [from, to] : one) variables[to] = variables[from];
      return row_.function(variables);
    };
    const GradCheckResult result = GradCheck(function, inputs);
    report_.Note(one.empty() ? "diff" : "twice-diff", result.worst_error, kDifferenceBound,
                 result.worst);
  }

  void Golden(const Run& full) {
    const size_t slash = row_.golden.find('/');
    const std::string name = row_.golden.substr(slash + 1);
    for (const GoldenEntry& entry : ReadGolden(row_.golden.substr(0, slash))) {
      if (entry.name != name) continue;
      std::string operands;
      for (const Operand& operand : row_.operands) {
        operands += (operands.empty() ? "" : "; ") + operand.ToString();
      }
      ASSERT_EQ(entry.operands, operands) << row_.golden << " was made for other operands";
      ASSERT_EQ(entry.grads.size(), wanted_.size());
      NoteGolden(full.out, entry.out, "value");
      for (size_t k = 0; k < wanted_.size(); ++k) {
        NoteGolden(full.grads[wanted_[k]], entry.grads[k], "gradient " + std::to_string(k));
      }
      return;
    }
    ADD_FAILURE() << "there is no golden entry " << row_.golden;
  }

  void NoteGolden(const Tensor& got, const GoldenTensor& want, const std::string& what) {
    EXPECT_EQ(got.shape().ToString(), want.shape.ToString()) << row_.name << ", golden " << what;
    report_.Note("golden", RelativeError(Doubles(got), want.values), row_.golden_bound, what);
  }

  void Alone(const std::vector<Tensor>& tensors, const Run& full) {
    if (wanted_.size() < 2) return;
    for (size_t i : wanted_) {
      report_.Compare("alone", Apply(tensors, {i}), full, kReordered,
                      "only operand " + std::to_string(i) + " wants a gradient");
    }
  }

  void Again(const std::vector<Tensor>& tensors, const Run& full) {
    ApplyOptions options;
    options.times = 2;
    const Run twice = Apply(tensors, wanted_, options);
    for (size_t i : wanted_) {
      std::vector<double> doubled = Doubles(full.grads[i]);
      for (double& value : doubled) value *= 2.0;
      report_.Note("again", RelativeError(Doubles(twice.grads[i]), doubled), kReordered,
                   "gradient " + std::to_string(i) + " of two applications");
    }
  }

  void Twice() {
    for (size_t i : wanted_) {
      for (size_t j : wanted_) {
        const Operand& a = row_.operands[i];
        const Operand& b = row_.operands[j];
        if (j <= i || !(a.shape == b.shape) || a.values != b.values) continue;
        std::vector<Tensor> tensors = Tensors(DType::kF64);
        tensors[j] = tensors[i];
        const Run apart = Apply(tensors, wanted_);
        std::vector<double> sum = Doubles(apart.grads[i]);
        const std::vector<double> other = Doubles(apart.grads[j]);
        for (size_t k = 0; k < sum.size(); ++k) sum[k] += other[k];
        ApplyOptions options;
        options.one = {{i, j}};
        const Run together = Apply(tensors, wanted_, options);
        report_.Note("twice", RelativeError(Doubles(together.grads[i]), sum), kReordered,
                     "operands " + std::to_string(i) + " and " + std::to_string(j) + " are one");
        if (row_.smooth && !row_.random) Differences(tensors, options.one);
      }
    }
  }

  bool Refuses(size_t operand, Layout layout) const {
    for (const Refusal& refusal : row_.refuses) {
      const bool this_one = refusal.operand < 0 || refusal.operand == static_cast<int>(operand);
      if (this_one && refusal.layout == layout) return true;
    }
    return false;
  }

  // `places` in `layout`, the others contiguous, compared with all contiguous.
  void OneLayout(const CheckedDType& type, const Places& places, Layout layout) {
    std::vector<Tensor> tensors = Tensors(type.dtype);
    std::vector<Tensor> packed = tensors;
    std::string what = NameOf(layout);
    for (size_t i : places) {
      tensors[i] = InLayout(tensors[i], layout);
      packed[i] = Packed(tensors[i]);
      what += " " + std::to_string(i);
    }
    report_.Compare("layout-" + std::string(NameOf(type.dtype)), Apply(tensors, wanted_),
                    Apply(packed, wanted_), row_.layout_eps, what, type.epsilon);
  }

  void Layouts(const CheckedDType& type) {
    for (Layout layout : kLayouts) {
      Places accepted;
      for (size_t i = 0; i < row_.operands.size(); ++i) {
        if (!HasLayout(row_.operands[i].shape, layout)) continue;
        if (Refuses(i, layout)) {
          ExpectRefusal(type.dtype, i, layout);
        } else {
          accepted.push_back(i);
          OneLayout(type, {i}, layout);
        }
      }
      if (accepted.size() > 1) OneLayout(type, accepted, layout);
      SeedLayout(type, layout);
    }
  }

  void SeedLayout(const CheckedDType& type, Layout layout) {
    const std::vector<Tensor> tensors = Tensors(type.dtype);
    ApplyOptions options;
    options.seed_dtype = type.dtype;
    options.expand_seed = layout == Layout::kExpanded;
    const Run full = Apply(tensors, wanted_, options);
    if (!HasLayout(full.out.shape(), layout)) return;
    options.expand_seed = false;
    options.seed_layout = &layout;
    report_.Compare("layout-" + std::string(NameOf(type.dtype)), Apply(tensors, wanted_, options),
                    full, row_.layout_eps, std::string(NameOf(layout)) + " incoming gradient",
                    type.epsilon);
  }

  void ExpectRefusal(DType dtype, size_t operand, Layout layout) {
    std::vector<Tensor> tensors = Tensors(dtype);
    tensors[operand] = InLayout(tensors[operand], layout);
    try {
      Apply(tensors, wanted_);
      ADD_FAILURE() << row_.name << ": operand " << operand << " in layout " << NameOf(layout)
                    << " is to be refused";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), absl::StatusCode::kInvalidArgument) << error.what();
    }
  }

  void Against64(const CheckedDType& low) {
    const std::vector<Tensor> tensors = Tensors(low.dtype);
    std::vector<Tensor> wide;
    for (const Tensor& tensor : tensors) {
      wide.push_back(IsFloating(tensor.dtype()) ? CastTo(tensor, DType::kF64) : tensor);
    }
    ApplyOptions options;
    options.seed_dtype = low.dtype;
    report_.Compare(std::string(NameOf(low.dtype)) + "/eps", Apply(tensors, wanted_, options),
                    Apply(wide, wanted_, options), row_.dtype_eps, "against f64", low.epsilon);
  }

  void OnDevice(const Device& device, const CheckedDType& type) {
    std::vector<Tensor> wide;
    for (const Tensor& tensor : Tensors(type.dtype)) {
      wide.push_back(IsFloating(tensor.dtype()) ? CastTo(tensor, DType::kF64) : tensor);
    }
    ApplyOptions options;
    options.seed_dtype = type.dtype;
    const Run want = Apply(wide, wanted_, options);
    OneOnDevice(device, type, want, Tensors(type.dtype), "contiguous");
    for (Layout layout : {Layout::kOffset, Layout::kColumns, Layout::kReversed}) {
      std::vector<Tensor> tensors = Tensors(type.dtype);
      for (size_t i = 0; i < tensors.size(); ++i) {
        if (HasLayout(tensors[i].shape(), layout) && !Refuses(i, layout)) {
          tensors[i] = InLayout(tensors[i], layout);
        }
      }
      OneOnDevice(device, type, want, tensors, NameOf(layout));
    }
  }

  void OneOnDevice(const Device& device, const CheckedDType& type, const Run& want,
                   std::vector<Tensor> tensors, const std::string& what) {
    for (Tensor& tensor : tensors) tensor = MoveTo(device, tensor);
    ApplyOptions options;
    options.seed_dtype = type.dtype;
    options.device = &device;
    Run got = Apply(tensors, wanted_, options);
    got.out = MoveToHost(op_table::Cpu(), got.out);
    for (Tensor& grad : got.grads) {
      if (grad.defined()) grad = MoveToHost(op_table::Cpu(), grad);
    }
    const double bound = type.dtype == DType::kF64 ? kOtherBackend : 2.0 * row_.dtype_eps;
    report_.Compare(std::string(NameOf(type.dtype)) + "/eps", got, want, bound, what, type.epsilon);
  }

  // Gradients of operands in 16 bits kept in f32, and of those in f32 kept in bf16.
  void AsParameters(const CheckedDType& low) {
    const DType kept = low.dtype == DType::kF32 ? DType::kBF16 : DType::kF32;
    const std::string column =
        std::string(NameOf(low.dtype)) + "-kept-" + std::string(NameOf(kept));
    std::vector<Tensor> tensors = Tensors(low.dtype);
    std::vector<Tensor> wide;
    for (const Tensor& tensor : tensors) {
      wide.push_back(IsFloating(tensor.dtype()) ? CastTo(tensor, DType::kF64) : tensor);
    }
    ApplyOptions options;
    options.seed_dtype = low.dtype;
    const Run want = Apply(wide, wanted_, options);
    WideHost host(kept);
    options.host = &host;
    Run got = Apply(tensors, wanted_, options);
    got.out = want.out;  // is not in question here
    const double bound = kept == DType::kBF16 ? kKeptNarrow : row_.dtype_eps * low.epsilon;
    report_.Compare(column, got, want, bound, "parameters");
    if (row_.random) return;
    options.times = 2;
    Run twice = Apply(tensors, wanted_, options);
    twice.out = want.out;
    Run doubled = want;
    for (size_t i : wanted_) {
      doubled.grads[i] = Packed(doubled.grads[i]);
      kernels::Scale(doubled.grads[i], 2.0, doubled.grads[i]);
    }
    report_.Compare(column, twice, doubled, bound, "parameters read twice");
  }

  const OpRow& row_;
  Report report_;
  Places wanted_;
};

}  // namespace

void CheckRow(const OpRow& row) { RowCheck(row).RunAll(); }

void CheckRowOnAccelerator(const OpRow& row) {
  std::string why;
  const Device device = Accelerator(&why);
  if (!device.defined()) GTEST_SKIP() << why;
  RowCheck(row).RunOn(device);
}

void CheckGoldenEntriesAreUsed(std::span<const OpRow> rows) {
  std::map<std::string, std::set<std::string>> used;
  for (const OpRow& row : rows) {
    const size_t slash = row.golden.find('/');
    if (slash != std::string::npos) {
      used[row.golden.substr(0, slash)].insert(row.golden.substr(slash + 1));
    }
  }
  for (const auto& [part, names] : used) {
    for (const GoldenEntry& entry : ReadGolden(part)) {
      EXPECT_TRUE(names.contains(entry.name))
          << "no row names the entry " << part << "/" << entry.name;
    }
  }
}

}  // namespace sherd::testing
