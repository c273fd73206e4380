#include "sherd/runtime/cuda/internal/attention_prepare.h"

#include "sherd/runtime/cuda/internal/launch.h"
#include "sherd/runtime/cuda/internal/note_fault.h"
#include "sherd/runtime/kernels/internal/attention_operands.h"
#include "sherd/runtime/kernels/pack.h"

namespace sherd::cuda::attention {
namespace {

constexpr int kThreads = 256;

// The first and the last key of each row that is not hidden, and a byte for each key. One block
// for a row. Reads mask and lengths once.
template <typename M, typename L>
__global__ void __launch_bounds__(kThreads)
    FindKeys(const M* mask, const L* lengths, int64_t keys, uint8_t* shows, int* ranges,
             IndexCheck check) {
  __shared__ int begin, end;
  const int64_t b = blockIdx.x;
  int64_t most = keys;
  if (lengths != nullptr) {
    most = lengths[b];
    if (threadIdx.x == 0) check.Passes(most, b);
    most = most < 0 ? 0 : most < keys ? most : keys;
  }
  if (threadIdx.x == 0) {
    begin = mask == nullptr ? 0 : static_cast<int>(most);
    end = mask == nullptr ? static_cast<int>(most) : 0;
  }
  __syncthreads();
  for (int64_t s = threadIdx.x; mask != nullptr && s < keys; s += kThreads) {
    const bool seen = s < most && mask[b * keys + s] != 0;
    shows[b * keys + s] = seen ? 1 : 0;
    if (!seen) continue;
    atomicMin(&begin, static_cast<int>(s));
    atomicMax(&end, static_cast<int>(s) + 1);
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  ranges[2 * b] = begin < end ? begin : 0;
  ranges[2 * b + 1] = begin < end ? end : 0;
}

// [Note: slots of packed tiles] A tile that begins at token g of all rows' tokens, in document i
// and row r, has slot g / tile + i + r. Tiles of one document and row begin `tile` tokens apart,
// and between those of different ones i + r grows, so no two share a slot, and none needs to know
// how many came before it.
int64_t PackedSlots(const Tensor& q, const Tensor& cu_seqlens, int tile) {
  return (q.dim(0) * q.dim(1) - 1) / tile + cu_seqlens.numel() + q.dim(0);
}

// Writes the tile that begins at each token that begins one. `ends` are cu_seqlens; what lies
// behind the last is document `documents`.
template <typename I>
__global__ void __launch_bounds__(kThreads)
    FindTiles(const I* ends, int64_t documents, int64_t rows, int64_t tokens, int tile, Tile* tiles,
              IndexCheck check) {
  const int64_t all = rows * tokens, step = int64_t{gridDim.x} * kThreads;
  const int64_t begin = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  for (int64_t i = begin; i <= documents; i += step) {
    const int64_t before = i == 0 ? 0 : static_cast<int64_t>(ends[i - 1]);
    IndexCheck length = check;
    length.limit = i == 0 ? 1 : all - before + 1;
    length.Passes(static_cast<int64_t>(ends[i]) - before, i);
  }
  for (int64_t g = begin; g < all; g += step) {
    int64_t low = 0, high = documents + 1;  // ends[low] <= g < ends[high], of an ascending list
    while (high - low > 1) {
      const int64_t middle = (low + high) / 2;
      (static_cast<int64_t>(ends[middle]) <= g ? low : high) = middle;
    }
    const int64_t row = g / tokens, row_begin = row * tokens;
    const int64_t here = ends[low];
    const int64_t next = low < documents ? static_cast<int64_t>(ends[low + 1]) : all;
    const int64_t first = here < row_begin ? row_begin : here > g ? g : here;
    const int64_t row_end = row_begin + tokens;
    const int64_t end = next > row_end ? row_end : next <= g ? g + 1 : next;
    if ((g - first) % tile != 0) continue;
    Tile x;
    x.row = static_cast<int>(low < documents ? row : ~row);
    x.first = static_cast<int>(first - row_begin);
    x.tokens = static_cast<int>(end - first);
    x.start = static_cast<int>(g - first);
    tiles[g / tile + low + row] = x;
  }
}

Tensor Workspace(const Device& device, DType dtype, const Shape& shape) {
  return Tensor::Empty(device, dtype, shape, MemoryCategory::kWorkspace);
}

// A mask's elements as kernels read them.
Tensor IntegersOf(const Tensor& x, int64_t count) {
  SHERD_CHECK(x.dtype() == DType::kI32 || x.dtype() == DType::kI64,
              "a mask of attention is neither i32 nor i64");
  SHERD_CHECK(x.numel() == count, "a mask of attention does not fit");
  return kernels::Pack(x);
}

void PrepareKeys(const Device& device, const kernels::AttentionOptions& options, Prepared& p) {
  Args& args = p.args;
  const bool masked = options.key_mask.defined(), cut = options.key_lengths.defined();
  if (!masked && !cut) return;
  const Tensor mask =
      masked ? IntegersOf(options.key_mask, args.batch * args.keys) : options.key_mask;
  const Tensor lengths = cut ? IntegersOf(options.key_lengths, args.batch) : options.key_lengths;
  p.key_ranges = Workspace(device, DType::kI32, {args.batch, 2});
  if (masked) p.mask = Workspace(device, DType::kI32, {(args.batch * args.keys + 3) / 4});
  uint8_t* const shows = masked ? static_cast<uint8_t*>(p.mask.raw()) : nullptr;
  int* const ranges = p.key_ranges.data<int32_t>();
  args.key_ranges = ranges;
  args.mask = shows;
  const IndexCheck check = {BackendOf(device).fault(), FaultOp::kAttention, args.keys + 1};
  const LaunchShape shape = {.grid = static_cast<unsigned>(args.batch), .block = kThreads};
  WithIndex(masked ? mask.dtype() : DType::kI32, [&](auto m) {
    WithIndex(cut ? lengths.dtype() : DType::kI32, [&](auto l) {
      using M = decltype(m);
      using L = decltype(l);
      Launch(device, shape, FindKeys<M, L>, masked ? mask.data<M>() : nullptr,
             cut ? lengths.data<L>() : nullptr, args.keys, shows, ranges, check);
    });
  });
}

void PrepareDocuments(const Tensor& q, const kernels::AttentionOptions& options, int tile,
                      Prepared& p) {
  Args& args = p.args;
  SHERD_CHECK(!options.key_mask.defined() && !options.key_lengths.defined() &&
                  args.queries == args.keys && options.cu_seqlens.numel() > 0,
              "packed attention has masks or keys of its own, or no cu_seqlens");
  const Device& device = q.device();
  const Tensor ends = IntegersOf(options.cu_seqlens, options.cu_seqlens.numel());
  const int64_t slots = PackedSlots(q, ends, tile), documents = ends.numel() - 1;
  p.tiles = Tensor::Zeros(device, DType::kI32, {slots, 4}, MemoryCategory::kWorkspace);
  args.tiles = static_cast<const Tile*>(p.tiles.raw());
  p.query_slots = p.key_slots = slots;
  const IndexCheck check = {BackendOf(device).fault(), FaultOp::kAttention, 0};
  const unsigned grid =
      GridFor(device, std::max(args.batch * args.queries, documents + 1), kThreads);
  WithIndex(ends.dtype(), [&](auto i) {
    using I = decltype(i);
    Launch(device, {.grid = grid, .block = kThreads}, FindTiles<I>, ends.data<I>(), documents,
           args.batch, args.queries, tile, static_cast<Tile*>(p.tiles.raw()), check);
  });
}

}  // namespace

Heads HeadsOf(const Tensor& x) {
  if (!x.defined() || x.numel() == 0) return {};
  const int64_t vector = 16 / SizeOf(x.dtype());
  Heads heads = {x.raw(), x.strides()[0], x.strides()[1], x.strides()[2], true};
  heads.aligned = reinterpret_cast<uintptr_t>(heads.data) % 16 == 0 && x.dim(3) % vector == 0;
  for (int i = 0; i < 3; ++i) {
    heads.aligned = heads.aligned && (x.dim(i) == 1 || x.strides()[i] % vector == 0);
  }
  return heads;
}

Prepared Prepare(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                 const Tensor& lse, const kernels::AttentionOptions& options, int tile) {
  const kernels::internal::AttentionDropout dropout = kernels::internal::DropoutOf(q, k, options);
  Prepared p;
  Args& args = p.args;
  args.q = HeadsOf(q);
  args.k = HeadsOf(k);
  args.v = HeadsOf(v);
  args.out = HeadsOf(out);
  args.lse = lse.raw();
  args.batch = q.dim(0);
  args.heads = q.dim(2);
  args.group = q.dim(2) / k.dim(2);
  args.queries = q.dim(1);
  args.keys = k.dim(1);
  args.head_size = static_cast<int>(q.dim(3));
  args.causal = options.causal;
  args.scale = options.scale;
  p.query_slots = args.batch * TilesOf(args.queries, tile);
  p.key_slots = args.batch * TilesOf(args.keys, tile);
  if (dropout.on) {
    p.samples = Tensor::FromHost<int64_t>(q.device(), options.row_samples, {args.batch},
                                          MemoryCategory::kWorkspace);
    args.dropout = {true, dropout.threshold, dropout.keep_scale, options.random_key,
                    p.samples.data<int64_t>()};
  }
  if (options.cu_seqlens.defined()) {
    PrepareDocuments(q, options, tile, p);
  } else {
    PrepareKeys(q.device(), options, p);
  }
  return p;
}

}  // namespace sherd::cuda::attention
