// The one file that knows oneDNN, version 2 or 3.
#include <dlfcn.h>
#include <dnnl_version.h>
#include <dnnl.hpp>

#include <array>
#include <map>
#include <mutex>
#include <string_view>
#include <unordered_map>

#include "absl/strings/str_cat.h"
#include "sherd/runtime/kernels/internal/onednn_matmul.h"
#include "sherd/runtime/kernels/internal/views.h"

namespace sherd::kernels::internal {
namespace {

// Sets the OpenMP thread count of the calling thread, and restores it.
//
// The functions are looked up in the process, so that it is the runtime oneDNN uses that hears of
// it, and a oneDNN without OpenMP needs none.
class OpenMpThreads {
 public:
  explicit OpenMpThreads(int threads) {
    static const auto get = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "omp_get_max_threads"));
    if (get == nullptr || Set() == nullptr) return;
    before_ = get();
    if (before_ != threads) Set()(threads);
    changed_ = before_ != threads;
  }
  ~OpenMpThreads() {
    if (changed_) Set()(before_);
  }
  OpenMpThreads(const OpenMpThreads&) = delete;
  OpenMpThreads& operator=(const OpenMpThreads&) = delete;

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
using Key = std::array<int64_t, 12>;

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
  dnnl::stream stream{engine};
  std::mutex mutex;
  std::unordered_map<Key, Primitive, KeyHash> primitives;
};

dnnl::memory::data_type TypeOf(DType dtype) {
  return dtype == DType::kBF16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}

Primitive Make(const dnnl::engine& engine, const MatmulProblem& p) {
  Primitive made;
  const auto in = TypeOf(p.a->dtype());
  made.a = dnnl::memory::desc({p.m, p.k}, in, {p.a_row, p.a_col});
  made.b = dnnl::memory::desc({p.k, p.n}, in, {p.b_row, p.b_col});
  made.out = dnnl::memory::desc({p.m, p.n}, TypeOf(p.out->dtype()), {p.out_row, 1});
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

Primitive Find(OneDnnCache& cache, const MatmulProblem& p, int threads) {
  const Key key = {p.m,
                   p.n,
                   p.k,
                   p.a_row,
                   p.a_col,
                   p.b_row,
                   p.b_col,
                   p.out_row,
                   static_cast<int64_t>(p.a->dtype()),
                   static_cast<int64_t>(p.out->dtype()),
                   p.add,
                   threads};
  std::lock_guard<std::mutex> lock(cache.mutex);
  if (cache.primitives.size() >= OneDnnCache::kMaxEntries) cache.primitives.clear();
  auto found = cache.primitives.find(key);
  if (found == cache.primitives.end()) {
    found = cache.primitives.emplace(key, Make(cache.engine, p)).first;
  }
  return found->second;
}

}  // namespace

bool OneDnnMatmul(const MatmulProblem& p) {
  const Device& device = p.out->device();
  const int threads = device.pool().threads();
  try {
    const OpenMpThreads openmp(threads);
    OneDnnCache& cache = device.Slot<OneDnnCache>();
    const Primitive found = Find(cache, p, threads);
    if (!found.usable) return false;
    const Workspace scratchpad(device, static_cast<int64_t>(found.scratchpad.get_size()));
    const dnnl::engine& engine = cache.engine;
    found.matmul.execute(
        cache.stream,
        {{DNNL_ARG_SRC, dnnl::memory(found.a, engine, p.a->raw())},
         {DNNL_ARG_WEIGHTS, dnnl::memory(found.b, engine, p.b->raw())},
         {DNNL_ARG_DST, dnnl::memory(found.out, engine, p.out->raw())},
         {DNNL_ARG_SCRATCHPAD, dnnl::memory(found.scratchpad, engine, scratchpad.data())}});
    cache.stream.wait();
  } catch (const dnnl::error& error) {
    ThrowError(Error(absl::StatusCode::kInternal, absl::StrCat("oneDNN failed: ", error.message),
                     {.op = "matmul"}));
  }
  return true;
}

}  // namespace sherd::kernels::internal
