// The one file that knows oneDNN, version 2 or 3.
#include <dlfcn.h>
#include <dnnl_version.h>
#include <dnnl.hpp>

#include <algorithm>
#include <array>
#include <mutex>
#include <string_view>
#include <unordered_map>

#include "absl/strings/str_cat.h"
#include "sherd/runtime/kernels/internal/onednn_matmul.h"
#include "sherd/runtime/kernels/internal/views.h"

namespace sherd::kernels::internal {
namespace {

// Sets the OpenMP thread count of the calling thread to one, and restores it.
//
// The functions are looked up in the process, so that it is the runtime oneDNN uses that hears of
// it, and a oneDNN without OpenMP needs none.
class OneOpenMpThread {
 public:
  OneOpenMpThread() {
    static const auto get = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "omp_get_max_threads"));
    if (get == nullptr || Set() == nullptr) return;
    before_ = get();
    changed_ = before_ != 1;
    if (changed_) Set()(1);
  }
  ~OneOpenMpThread() {
    if (changed_) Set()(before_);
  }
  OneOpenMpThread(const OneOpenMpThread&) = delete;
  OneOpenMpThread& operator=(const OneOpenMpThread&) = delete;

 private:
  using SetFunction = void (*)(int);
  static SetFunction Set() {
    static const auto set =
        reinterpret_cast<SetFunction>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
    return set;
  }
  int before_ = 0;
  bool changed_ = false;
};

// Everything a primitive depends on.
using Key = std::array<int64_t, 11>;

struct KeyHash {
  size_t operator()(const Key& key) const {
    uint64_t hash = 0;
    for (int64_t part : key)
      hash = (hash ^ static_cast<uint64_t>(part)) * 0x9E3779B97F4A7C15u + (hash >> 29);
    return hash;
  }
};

struct Primitive {
  bool usable = false;
  dnnl::matmul matmul;
  dnnl::memory::desc a, b, out, scratchpad;
};

// A device's engine and primitives.
struct OneDnnCache {
  // Shapes a trainer meets are few; a program that varies them without end starts over here.
  static constexpr size_t kMaxEntries = 1024;

  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  std::mutex mutex;
  std::unordered_map<Key, Primitive, KeyHash> primitives;
};

dnnl::memory::data_type TypeOf(DType dtype) {
  return dtype == DType::kBF16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}

Primitive Make(const dnnl::engine& engine, const MatmulProblem& p) {
  Primitive made;
  const auto in = TypeOf(p.in_dtype);
  made.a = dnnl::memory::desc({p.m, p.k}, in, {p.a_row, p.a_col});
  made.b = dnnl::memory::desc({p.k, p.n}, in, {p.b_row, p.b_col});
  made.out = dnnl::memory::desc({p.m, p.n}, TypeOf(p.out_dtype), {p.out_row, 1});
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (p.add) {
    dnnl::post_ops ops;
    ops.append_sum(1.0f);
    attr.set_post_ops(ops);
  }
  constexpr bool kAllowEmpty = true;
#if DNNL_VERSION_MAJOR >= 3
  const dnnl::matmul::primitive_desc desc(engine, made.a, made.b, made.out, attr, kAllowEmpty);
#else
  const dnnl::matmul::primitive_desc desc({made.a, made.b, made.out}, attr, engine, kAllowEmpty);
#endif
  if (!desc) return made;
  // A reference loop is no use where our own is faster.
  if (in == dnnl::memory::data_type::bf16 &&
      std::string_view(desc.impl_info_str()).starts_with("ref")) {
    return made;
  }
  made.scratchpad = desc.scratchpad_desc();
  made.matmul = dnnl::matmul(desc);
  made.usable = true;
  return made;
}

Primitive Find(OneDnnCache& cache, const MatmulProblem& p) {
  const Key key = {p.m,
                   p.n,
                   p.k,
                   p.a_row,
                   p.a_col,
                   p.b_row,
                   p.b_col,
                   p.out_row,
                   static_cast<int64_t>(p.in_dtype),
                   static_cast<int64_t>(p.out_dtype),
                   p.add};
  std::lock_guard<std::mutex> lock(cache.mutex);
  if (cache.primitives.size() >= OneDnnCache::kMaxEntries) cache.primitives.clear();
  auto found = cache.primitives.find(key);
  if (found == cache.primitives.end()) {
    const OneOpenMpThread one_thread;
    found = cache.primitives.emplace(key, Make(cache.engine, p)).first;
  }
  return found->second;
}

void Execute(const Device& device, const dnnl::engine& engine, const Primitive& primitive,
             const MatmulProblem& p) {
  const OneOpenMpThread one_thread;
  const Workspace scratchpad(device, static_cast<int64_t>(primitive.scratchpad.get_size()));
  const auto memory = [&](const dnnl::memory::desc& desc, const void* data) {
    return dnnl::memory(desc, engine, const_cast<void*>(data));
  };
  dnnl::stream stream(engine);
  primitive.matmul.execute(
      stream, {{DNNL_ARG_SRC, memory(primitive.a, p.a)},
               {DNNL_ARG_WEIGHTS, memory(primitive.b, p.b)},
               {DNNL_ARG_DST, memory(primitive.out, p.out)},
               {DNNL_ARG_SCRATCHPAD, memory(primitive.scratchpad, scratchpad.data())}});
  stream.wait();
}

// [Note: pieces of a product] oneDNN splits the sum over k between threads when the output is
// small, and picks the blocks of k by the shape, so its bits depend on the number of threads. It is
// therefore run on one thread at a time, for pieces of the output that depend on the problem alone,
// which our own pool hands out. OpenMP starts no threads, whose busy waiting would take cores from
// communication.
struct Pieces {
  bool columns;
  int64_t extent, step;

  int64_t count() const { return (extent + step - 1) / step; }
  MatmulProblem Take(const MatmulProblem& p, int64_t i) const {
    const int64_t begin = i * step, end = std::min(extent, begin + step);
    return columns ? p.Columns(begin, end) : p.Rows(begin, end);
  }
};

Pieces PiecesOf(const MatmulProblem& p) {
  constexpr int64_t kMostPieces = 16, kMultiple = 64;
  constexpr double kLeastWork = 16e6;  // multiplications: 0.2 ms
  const bool columns = p.m <= kMultiple;
  const int64_t extent = columns ? p.n : p.m;
  // A transposed b is repacked for each piece of rows, so these are longer.
  const int64_t least = p.b_col != 1 && !columns ? 8 * kMultiple : 2 * kMultiple;
  const double work =
      static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k);
  const auto most = static_cast<int64_t>(std::clamp(work / kLeastWork, 1.0, double{kMostPieces}));
  const int64_t step = (extent / most + kMultiple - 1) / kMultiple * kMultiple;
  return {columns, extent, most == 1 ? extent : std::max(step, least)};
}

}  // namespace

bool OneDnnMatmul(const Device& device, const MatmulProblem& p) {
  try {
    OneDnnCache& cache = device.Slot<OneDnnCache>();
    const Pieces pieces = PiecesOf(p);
    const int64_t count = pieces.count();
    // All but the last piece have one shape.
    const Primitive first = Find(cache, pieces.Take(p, 0));
    const Primitive last = count == 1 ? first : Find(cache, pieces.Take(p, count - 1));
    if (!first.usable || !last.usable) return false;
    device.pool().ParallelFor(count, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        Execute(device, cache.engine, i + 1 < count ? first : last, pieces.Take(p, i));
      }
    });
  } catch (const dnnl::error& error) {
    ThrowError(Error(absl::StatusCode::kInternal, absl::StrCat("oneDNN failed: ", error.message),
                     {.op = "matmul"}));
  }
  return true;
}

}  // namespace sherd::kernels::internal
