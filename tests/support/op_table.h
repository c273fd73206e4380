#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "sherd/autograd/tape.h"
#include "sherd/autograd/variable.h"

// The table of ops: each row is a function of variables, and every row goes through every check.
//
// To add rows: a file tests/autograd/ops_table_<part>_test.cc that returns a vector<OpRow> and ends
// with SHERD_TEST_OP_TABLE(<Name>, Rows()), and its line in tests/autograd/CMakeLists.txt (LIBS
// sherd_test_op_table). To add golden values: a file tests/golden/ops_<part>.py with one function
// for each entry, then `python3 tests/golden/make_golden.py <part>`, which writes
// tests/golden/data/<part>.txt; the row names its entry "<part>/<entry>". Needs PyTorch only then.
//
// The checks, each a column of the line a row prints:
//   diff     central differences in f64 (GradCheck), error below kDifferenceBound
//   golden   value and gradients against PyTorch in f64, relative L2 error below golden_bound
//   alone    each operand as the only one that wants a gradient: the full run within 1e-15, since a
//            compiler may contract the two loops differently
//   again    the function twice in one recording, so that gradients add: exactly twice the full run
//   twice    f(x, x) for every pair of equal shape: the sum of both operands' gradients
//   layout   operands in every layout, and the incoming gradient too, in every dtype
//   <dtype>  value and gradients against f64 on the same rounded inputs, in units of its epsilon
//   <dtype>-kept-<dtype>   operands as parameters whose gradients are kept in another dtype: the
//            same relative error, for one application and for two that add up
namespace sherd::testing {

// How operand values are made. All but kGiven are functions of the operand's place in the row and
// the element's index, the same in tests/golden/golden.py: u is uniform in [0, 1), from the top 53
// bits of SplitMix64 (Steele et al. 2014).
enum class Values : uint8_t {
  kNormal,       // (u1 + u2 + u3 + u4 - 2) sqrt(3): mean 0, variance 1, within 3.5
  kPositive,     // 0.5 + 1.5 u
  kProbability,  // 0.05 + 0.9 u
  kApart,        // kNormal moved away from zero by 0.1: for kinks and denominators
  kIds,          // floor(u limit): integers in [0, limit)
  kMask,         // floor(2 u): integers 0 and 1
  kGiven         // `given`, in row-major order
};

struct Operand {
  Values values = Values::kNormal;
  Shape shape;
  bool wants_grad = true;
  int64_t limit = 0;
  std::vector<double> given = {};
  // kF64 stands for the dtype under check; integers stay as they are.
  DType dtype = DType::kF64;

  // The same without a wish for its gradient.
  Operand Constant() const;
  // The same integers in i32.
  Operand I32() const;
  // "normal[2, 3]", "ids(5)[4]", "given(1, 0)[2]": what a golden entry says of its operands.
  std::string ToString() const;
};

Operand Normal(const Shape& shape);
Operand Positive(const Shape& shape);
Operand Probability(const Shape& shape);
Operand Apart(const Shape& shape);
Operand Ids(const Shape& shape, int64_t limit);
Operand Mask(const Shape& shape);
Operand GivenIds(const std::vector<int64_t>& ids, const Shape& shape);
Operand GivenFloats(const std::vector<double>& values, const Shape& shape);

// How an operand lies in memory.
enum class Layout : uint8_t {
  kOffset,    // contiguous, some elements into its storage
  kColumns,   // the middle of rows that are three elements longer
  kReversed,  // strides in reverse order; of a vector every second element
  kExpanded   // one element or row repeated along the first dimension by stride 0
};
inline constexpr Layout kLayouts[] = {Layout::kOffset, Layout::kColumns, Layout::kReversed,
                                      Layout::kExpanded};
const char* NameOf(Layout layout);

// A layout that an operand may not have: the op throws kInvalidArgument. -1: any operand.
struct Refusal {
  int operand = -1;
  Layout layout = Layout::kReversed;
};

using OpInputs = std::span<const Variable>;

struct OpRow {
  std::string name;
  std::vector<Operand> operands;
  // Gets one variable for each operand. It may look at dtypes; it must not keep state.
  std::function<Variable(OpInputs)> function;
  // "<part>/<entry>" of tests/golden/data; empty where PyTorch has nothing to compare with.
  std::string golden = {};
  double golden_bound = 1e-12;
  std::vector<Refusal> refuses = {};
  // Epsilons of the dtype that another layout may differ by, in relative L2 norm; 0: no bit. For
  // ops that sum in the order of memory.
  double layout_eps = 0.0;
  // Epsilons (the distance of 1 to the next number) that a result and a gradient in f32, bf16 or
  // f16 may be away from f64, in relative L2 norm.
  double dtype_eps = 1.0;
  // For ops whose values are no smooth function of every operand at the points taken: no diff.
  bool smooth = true;
  // Whether one variable may stand for several operands.
  bool twice = true;
  // The gradient's own last place: again compares to 1e-15, not bit for bit. For ops that
  // compute one gradient differently when nobody wants the other.
  bool close = false;
  // Random ops run only in a recording, and not twice with one mask: no diff, no again.
  bool random = false;
  RecordingOptions recording = {};
};

inline constexpr double kDifferenceBound = 1e-7;

// Runs every check of a row, prints its line, and fails the current test where one does not hold.
void CheckRow(const OpRow& row);

// The same row on the accelerator, in every dtype and layout, against f64 on the CPU. Skipped, with
// the reason, where the program has none.
void CheckRowOnAccelerator(const OpRow& row);

// Fails unless rows name every entry of each golden file that they name one of.
void CheckGoldenEntriesAreUsed(std::span<const OpRow> rows);

inline void PrintTo(const OpRow& row, std::ostream* out) { *out << row.name; }

// Programs that are linked with a backend beside the CPU's run each row there too.
#ifdef SHERD_TEST_ACCELERATOR
#define SHERD_TEST_OP_TABLE_ON_ACCELERATOR(Name) \
  TEST_P(Name##OpTable, RowOnAccelerator) { ::sherd::testing::CheckRowOnAccelerator(GetParam()); }
#else
#define SHERD_TEST_OP_TABLE_ON_ACCELERATOR(Name)
#endif

// Defines the tests of one table, named <Name>OpTable.
#define SHERD_TEST_OP_TABLE(Name, ...)                                               \
  class Name##OpTable : public ::testing::TestWithParam<::sherd::testing::OpRow> {}; \
  TEST_P(Name##OpTable, Row) { ::sherd::testing::CheckRow(GetParam()); }             \
  SHERD_TEST_OP_TABLE_ON_ACCELERATOR(Name)                                           \
  INSTANTIATE_TEST_SUITE_P(All, Name##OpTable, ::testing::ValuesIn(__VA_ARGS__));    \
  TEST(Name##OpTableGolden, EveryEntryHasARow) {                                     \
    const std::vector<::sherd::testing::OpRow> rows = __VA_ARGS__;                   \
    ::sherd::testing::CheckGoldenEntriesAreUsed(rows);                               \
  }                                                                                  \
  static_assert(true)

}  // namespace sherd::testing
