// Padding is inert: whatever lies there, in pieces and in gradients, nobody reads it.

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sherd/autograd/optim/adamw.h"
#include "sherd/runtime/kernels/elementwise.h"
#include "sherd/shard/muon.h"
#include "tests/shard/steps.h"

namespace sherd::testing {
namespace {

uint64_t RankOf(const World& world) { return static_cast<uint64_t>(world.rank()); }

// Fills what belongs to no parameter of this rank's pieces, and of their gradients, with NaN.
void PoisonPadding(const Module& model) {
  for (Unit* unit : UnitsOf(model)) {
    for (const LayoutSegment& segment : unit->layout().segments()) {
      const int i = segment.entries[0];
      const int64_t chunk = segment.chunk_elems;
      const int64_t chunk_begin = chunk * unit->axes().piece();
      for (const Tensor& piece : {unit->local(i), unit->HeldGradient(i)}) {
        if (!piece.defined()) continue;
        // Where the rank's chunk begins in the memory that its pieces lie in.
        const int64_t base =
            piece.offset_elems() - unit->layout().PieceOf(i, unit->axes().piece()).chunk_offset;
        for (const LayoutRange& gap : segment.padding) {
          const int64_t begin = std::max(gap.offset, chunk_begin) - chunk_begin;
          const int64_t end = std::min(gap.offset + gap.elems, chunk_begin + chunk) - chunk_begin;
          if (begin >= end) continue;
          kernels::Fill(Tensor::View(piece.storage(), base + begin, segment.dtype, {end - begin}),
                        std::numeric_limits<double>::quiet_NaN());
        }
      }
    }
  }
}

int64_t PaddingOf(const Module& model) {
  int64_t elems = 0;
  for (const Unit* unit : UnitsOf(model)) {
    for (const LayoutSegment& segment : unit->layout().segments()) {
      for (const LayoutRange& gap : segment.padding) elems += gap.elems;
    }
  }
  return elems;
}

// Three steps of two micro-batches, with gaps between parameters and at the end: the bits with and
// without the poison are the same.
TEST(Padding, NobodyReadsIt) {
  for (const auto& [ranks, inside] : {std::pair(2, 2), std::pair(3, 3), std::pair(4, 2)}) {
    for (const Stage& stage : {kZero3, kZero2, kZero1, kHybridOptimizer}) {
      for (bool muon : {false, true}) {
        SCOPED_TRACE(absl::StrCat(ranks, " ranks, muon ", muon));
        RunRanks(ranks, [&](World& world) {
          Whole values[2];
          double norms[2] = {};
          for (bool poison : {false, true}) {
            ShardModel model(2);
            const Mesh mesh = world.MakeMesh(inside);
            const FullyShardOptions options{.stage = stage, .granule = [](const Parameter& p) {
                                              return p.shape().rank() == 2 ? p.shape()[1] : 1;
                                            }};
            for (auto& block : model.blocks) FullyShard(*block, mesh, options);
            FullyShard(model, mesh, options);
            Initialize(model, world.device(), 1);
            EXPECT_GT(PaddingOf(model), 0);
            std::unique_ptr<Optimizer> optimizer;
            if (muon) optimizer = std::make_unique<Muon>(model);
            if (!muon) optimizer = std::make_unique<AdamW>(model.parameters());
            Accumulation accumulation(
                model,
                {.micro_batches = 2, .sync = muon ? WindowSync::kLast : WindowSync::kFullEach});
            if (poison) {
              model.parameters()[0].OnWindowGradient(
                  [&](const Parameter&) { PoisonPadding(model); });
            }
            Tape tape;
            for (int step = 0; step < 3; ++step) {
              if (poison) PoisonPadding(model);
              norms[poison ? 1 : 0] =
                  RunWindow(accumulation, *optimizer, tape, {RankOf(world), 10 + RankOf(world)},
                            [&](uint64_t i) {
                              if (poison) PoisonPadding(model);
                              return Energy(model(InputOf(world.device(), static_cast<int>(i),
                                                          static_cast<uint64_t>(step)),
                                                  {0, 1}));
                            },
                            {.learning_rate = 0.02, .clip = 1.0})
                      .grad_norm;
            }
            values[poison ? 1 : 0] = ValuesOf(model, &world.group());
          }
          EXPECT_EQ(norms[0], norms[1]) << "bits";
          EXPECT_EQ(values[0], values[1]) << "bits";
        });
      }
    }
  }
}

}  // namespace
}  // namespace sherd::testing
