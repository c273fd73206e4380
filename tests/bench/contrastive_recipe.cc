// How far the gradients of a widely copied recipe are from those of the joined batch, and how far
// ours are: contrastive_recipe.
//
// The recipe, written out with our ops: embeddings of all ranks are gathered without a gradient, a
// rank's own rows stay its own; every rank gives as many rows as the shortest has, since the gather
// needs equal ones; rank 0 alone has a loss, the mean over all rows, divided by the number of
// ranks; gradients are averaged over the ranks, as data-parallel wrappers do. Ours: RankingLoss,
// whose sums a window divides once.
//
// Two linear towers and a learnable scale, f64. Prints |g - joined| / |joined| for each gradient,
// and in brackets what is left of that when the gradient is multiplied by the best number.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <mutex>
#include <string>
#include <vector>

#include "sherd/autograd/loss/cross_entropy.h"
#include "sherd/autograd/ops/activation.h"
#include "sherd/autograd/ops/arithmetic.h"
#include "sherd/autograd/ops/linear.h"
#include "sherd/autograd/ops/shape.h"
#include "sherd/autograd/ops/similarity.h"
#include "sherd/autograd/tape.h"
#include "sherd/runtime/core/random.h"
#include "sherd/shard/gather_rows.h"
#include "sherd/shard/ranking_loss.h"
#include "tests/support/ranks.h"

namespace sherd {
namespace {

constexpr int64_t kInputs = 16;
constexpr int64_t kColumns = 8;
constexpr int64_t kPairs = 24;

using Cut = std::vector<int64_t>;
using Gradients = std::vector<std::vector<double>>;

// Normal values; row i is the same in whatever batch it is.
Tensor Rows(const Device& device, int64_t first_row, int64_t rows, int64_t columns, uint64_t seed) {
  std::vector<double> values;
  for (int64_t i = first_row * columns; i < (first_row + rows) * columns; ++i) {
    const auto words = Philox4x32(seed, static_cast<uint64_t>(i), 1);
    values.push_back(Normal(words[0], words[1]));
  }
  return Tensor::FromHost<double>(device, values, {rows, columns});
}

struct Towers {
  explicit Towers(const Device& device)
      : query(Variable::Leaf(Rows(device, 0, kColumns, kInputs, 1))),
        document(Variable::Leaf(Rows(device, 0, kColumns, kInputs, 2))),
        log_scale(Variable::Leaf(Tensor::FromHost<double>(device, std::vector{1.5}, {1}))) {}
  Variable query, document, log_scale;
};

// The sum over `own` rows of the cross-entropy among all; the i-th is row `first` + i there.
LossSum Scored(const Variable& queries, const Variable& documents, const Variable& log_scale) {
  const Variable scores = Matmul(Mul(L2Normalize(queries), Exp(log_scale)), L2Normalize(documents),
                                 {.transpose_b = true});
  std::vector<int64_t> targets;
  for (int64_t i = 0; i < queries.dim(0); ++i) targets.push_back(i);
  return CrossEntropy(
      scores, Tensor::FromHost<int64_t>(queries.value().device(), targets, {queries.dim(0)}));
}

// Rows of all ranks, of which only `own` have a gradient.
Variable WithoutGradient(const Variable& own, World& world) {
  const Variable all(GatherRowsOf(own.value(), world.mesh()));
  const int64_t begin = world.rank() * own.dim(0);
  return Concat(std::vector{Variable(all.value().Slice(0, 0, begin)), own,
                            Variable(all.value().Slice(0, begin + own.dim(0), all.dim(0)))},
                0);
}

void Recipe(World& world, const Cut& cut, Towers& towers) {
  const auto at = static_cast<size_t>(world.rank());
  int64_t begin = 0;
  for (size_t r = 0; r < at; ++r) begin += cut[r];
  const int64_t rows = *std::min_element(cut.begin(), cut.end());
  Tape tape;
  const Recording on(tape);
  const Variable queries = Linear(Rows(world.device(), begin, rows, kInputs, 3), towers.query);
  const Variable documents = Linear(Rows(world.device(), begin, rows, kInputs, 4), towers.document);
  const Variable all_queries = WithoutGradient(queries, world);
  const Variable all_documents = WithoutGradient(documents, world);
  if (world.rank() != 0) return;
  const LossSum loss = Scored(all_queries, all_documents, towers.log_scale);
  tape.Backward(loss.value, 1.0 / static_cast<double>(loss.items) / world.size());
}

void Ours(World& world, const Cut& cut, Towers& towers) {
  const auto at = static_cast<size_t>(world.rank());
  int64_t begin = 0;
  for (size_t r = 0; r < at; ++r) begin += cut[r];
  Tape tape;
  const Recording on(tape);
  const Variable queries = Linear(Rows(world.device(), begin, cut[at], kInputs, 3), towers.query);
  const Variable documents =
      Linear(Rows(world.device(), begin, cut[at], kInputs, 4), towers.document);
  const LossSum loss = RankingLoss(
      {.queries = queries, .documents = documents, .log_scale = towers.log_scale}, world.mesh());
  tape.Backward(loss.value, 1.0 / kPairs);  // as a window seeds it
}

// The gradients of the towers, summed over the ranks, times `factor`.
Gradients Summed(World& world, const Towers& towers, double factor) {
  Gradients all;
  for (const Variable& weight : {towers.query, towers.document, towers.log_scale}) {
    const Tensor grad = weight.grad();
    std::vector<double> values(static_cast<size_t>(weight.value().numel()), 0.0);
    if (grad.defined()) values = grad.ToHost<double>();
    world.group().AllReduce(values.data(), static_cast<int64_t>(values.size()), DType::kF64);
    for (double& value : values) value *= factor;
    all.push_back(std::move(values));
  }
  return all;
}

Gradients Run(const Cut& cut, bool ours) {
  Gradients gradients;
  const int ranks = static_cast<int>(cut.size());
  testing::RunRanks(ranks, [&](World& world) {
    Towers towers(world.device());
    ours ? Ours(world, cut, towers) : Recipe(world, cut, towers);
    Gradients mine = Summed(world, towers, ours ? 1.0 : 1.0 / ranks);
    if (world.rank() == 0) gradients = std::move(mine);
  });
  return gradients;
}

// The joined batch on one rank, with neither of the two.
Gradients Joined() {
  Gradients gradients;
  testing::RunRanks(1, [&](World& world) {
    Towers towers(world.device());
    Tape tape;
    const Recording on(tape);
    const Variable queries = Linear(Rows(world.device(), 0, kPairs, kInputs, 3), towers.query);
    const Variable documents = Linear(Rows(world.device(), 0, kPairs, kInputs, 4), towers.document);
    tape.Backward(Scored(queries, documents, towers.log_scale).value, 1.0 / kPairs);
    gradients = Summed(world, towers, 1.0);
  });
  return gradients;
}

// |got - want| / |want|, and the same for the multiple of `got` that is closest.
struct Errors {
  double as_is = 0.0, scaled = 0.0;
};

Errors ErrorsOf(const std::vector<double>& got, const std::vector<double>& want) {
  const auto distance = [&](double factor) {
    double difference = 0.0;
    double norm = 0.0;
    for (size_t i = 0; i < want.size(); ++i) {
      difference += std::pow(factor * got[i] - want[i], 2);
      norm += want[i] * want[i];
    }
    return std::sqrt(difference / norm);
  };
  double both = 0.0;
  double own = 0.0;
  for (size_t i = 0; i < want.size(); ++i) {
    both += got[i] * want[i];
    own += got[i] * got[i];
  }
  return {distance(1.0), distance(own > 0.0 ? both / own : 1.0)};
}

void PrintRow(const std::string& ranks, const char* name, const Gradients& got,
              const Gradients& want) {
  std::printf("| %s | %s |", ranks.c_str(), name);
  for (size_t k = 0; k < want.size(); ++k) {
    const Errors errors = ErrorsOf(got[k], want[k]);
    std::printf(want[k].size() > 1 ? " %.1e (%.1e) |" : " %.1e |", errors.as_is, errors.scaled);
  }
  std::printf("\n");
}

int Main() {
  const Gradients want = Joined();
  std::printf("| rows of the ranks | | query tower | document tower | scale |\n");
  std::printf("| --- | --- | --- | --- | --- |\n");
  for (const Cut& cut : {Cut{24}, Cut{12, 12}, Cut{9, 15}, Cut{6, 6, 6, 6}, Cut{3, 8, 4, 9}}) {
    std::string ranks;
    for (int64_t rows : cut) ranks += (ranks.empty() ? "" : ", ") + std::to_string(rows);
    PrintRow(ranks, "recipe", Run(cut, /*ours=*/false), want);
    PrintRow(ranks, "ours", Run(cut, /*ours=*/true), want);
  }
  return 0;
}

}  // namespace
}  // namespace sherd

int main() { return sherd::Main(); }
