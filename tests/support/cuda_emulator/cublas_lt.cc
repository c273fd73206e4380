#include "cublasLt.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "machine.h"
#include "number.h"
#include "stream.h"

struct cublasLtContext {
  int device = 0;
};

struct EmulatedMatrixLayout {
  int32_t type = CUDA_R_32F;
  int32_t order = CUBLASLT_ORDER_COL;
  uint64_t rows = 0;
  uint64_t cols = 0;
  int64_t ld = 0;
  int32_t batch_count = 1;
  int64_t batch_stride = 0;
};

struct EmulatedMatmulDesc {
  int32_t compute = CUBLAS_COMPUTE_32F;
  int32_t scale = CUDA_R_32F;
  int32_t pointer_mode = CUBLASLT_POINTER_MODE_HOST;
  int32_t transpose_a = CUBLAS_OP_N;
  int32_t transpose_b = CUBLAS_OP_N;
  uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
  int64_t bias_stride = 0;
  int32_t bias_type = -1;
};

struct EmulatedMatmulPreference {
  uint64_t workspace = 0;
  uint32_t alignment[4] = {256, 256, 256, 256};
};

namespace emulated {
namespace {

using Layout = EmulatedMatrixLayout;
using Desc = EmulatedMatmulDesc;

// One call of cublasLtMatmul.
struct Product {
  Desc desc;
  Layout a_layout, b_layout, c_layout, d_layout;
  const void* a = nullptr;
  const void* b = nullptr;
  const void* c = nullptr;
  void* d = nullptr;
  double alpha = 1;
  double beta = 0;
  int64_t rows = 0, cols = 0, inner = 0;
};

constexpr uint64_t kAlgo = 0x656d756c;  // marks an algorithm that the heuristic gave

size_t SizeOf(int32_t type) { return type == CUDA_R_64F ? 8 : type == CUDA_R_32F ? 4 : 2; }

bool KnownType(int32_t type) {
  return type == CUDA_R_32F || type == CUDA_R_64F || type == CUDA_R_16F || type == CUDA_R_16BF;
}

double Load(const void* base, int32_t type, int64_t i) {
  switch (type) {
    case CUDA_R_64F:
      return static_cast<const double*>(base)[i];
    case CUDA_R_32F:
      return static_cast<const float*>(base)[i];
    case CUDA_R_16F:
      return FromF16(static_cast<const uint16_t*>(base)[i]);
    default:
      return FromBf16(static_cast<const uint16_t*>(base)[i]);
  }
}

void Store(void* base, int32_t type, int64_t i, double value) {
  switch (type) {
    case CUDA_R_64F:
      static_cast<double*>(base)[i] = value;
      break;
    case CUDA_R_32F:
      static_cast<float*>(base)[i] = static_cast<float>(value);
      break;
    case CUDA_R_16F:
      static_cast<uint16_t*>(base)[i] = ToF16(static_cast<float>(value));
      break;
    default:
      static_cast<uint16_t*>(base)[i] = ToBf16(static_cast<float>(value));
  }
}

int64_t At(const Layout& layout, int64_t row, int64_t col) {
  return layout.order == CUBLASLT_ORDER_COL ? row + col * layout.ld : row * layout.ld + col;
}

// Bytes from the first to the last element, over all batches.
size_t Extent(const Layout& layout) {
  const int64_t last =
      At(layout, static_cast<int64_t>(layout.rows) - 1, static_cast<int64_t>(layout.cols) - 1) +
      (layout.batch_count - 1) * layout.batch_stride;
  return static_cast<size_t>(last + 1) * SizeOf(layout.type);
}

cublasStatus_t CheckLayout(const Layout* layout) {
  if (layout == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  const auto least = layout->order == CUBLASLT_ORDER_COL ? layout->rows : layout->cols;
  const bool right = layout->rows > 0 && layout->cols > 0 && layout->batch_count > 0 &&
                     layout->ld >= static_cast<int64_t>(least);
  return right ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

// cuBLASLt's table of types, the part that we know.
bool SupportedTypes(const Desc& desc, int32_t input, int32_t output) {
  if (desc.compute == CUBLAS_COMPUTE_64F) {
    return desc.scale == CUDA_R_64F && input == CUDA_R_64F && output == CUDA_R_64F;
  }
  if (desc.compute == CUBLAS_COMPUTE_16F || desc.scale != CUDA_R_32F || input == CUDA_R_64F) {
    return false;
  }
  return output == input || output == CUDA_R_32F;
}

cublasStatus_t CheckShapes(const Desc* desc, const Layout* const layouts[4], Product* product) {
  if (desc == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  for (int i = 0; i < 4; ++i) {
    if (cublasStatus_t error = CheckLayout(layouts[i])) return error;
    if (layouts[i]->batch_count != layouts[0]->batch_count) return CUBLAS_STATUS_INVALID_VALUE;
  }
  const auto& [a, b, c, d] = std::tie(*layouts[0], *layouts[1], *layouts[2], *layouts[3]);
  const bool ta = desc->transpose_a != CUBLAS_OP_N;
  const bool tb = desc->transpose_b != CUBLAS_OP_N;
  const uint64_t rows = ta ? a.cols : a.rows;
  const uint64_t inner = ta ? a.rows : a.cols;
  const uint64_t cols = tb ? b.rows : b.cols;
  if ((tb ? b.cols : b.rows) != inner || c.rows != rows || d.rows != rows || c.cols != cols ||
      d.cols != cols) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const bool bias = (desc->epilogue & CUBLASLT_EPILOGUE_BIAS) != 0;
  if (a.type != b.type || c.type != d.type || !SupportedTypes(*desc, a.type, d.type) ||
      c.order != d.order || (desc->epilogue & ~37u) != 0 ||
      (bias && d.order != CUBLASLT_ORDER_COL)) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  product->desc = *desc;
  product->a_layout = a;
  product->b_layout = b;
  product->c_layout = c;
  product->d_layout = d;
  product->rows = static_cast<int64_t>(rows);
  product->cols = static_cast<int64_t>(cols);
  product->inner = static_cast<int64_t>(inner);
  return CUBLAS_STATUS_SUCCESS;
}

double Gelu(double x) {
  return 0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}

template <typename Sum>
void RunBatch(const Product& p, int64_t batch, std::vector<Sum>& a, std::vector<Sum>& b) {
  const int64_t a_at = batch * p.a_layout.batch_stride;
  const int64_t b_at = batch * p.b_layout.batch_stride;
  const bool ta = p.desc.transpose_a != CUBLAS_OP_N;
  const bool tb = p.desc.transpose_b != CUBLAS_OP_N;
  for (int64_t i = 0; i < p.rows; ++i) {
    for (int64_t k = 0; k < p.inner; ++k) {
      const int64_t at = ta ? At(p.a_layout, k, i) : At(p.a_layout, i, k);
      a[i * p.inner + k] = static_cast<Sum>(Load(p.a, p.a_layout.type, a_at + at));
    }
  }
  for (int64_t k = 0; k < p.inner; ++k) {
    for (int64_t j = 0; j < p.cols; ++j) {
      const int64_t at = tb ? At(p.b_layout, j, k) : At(p.b_layout, k, j);
      b[k * p.cols + j] = static_cast<Sum>(Load(p.b, p.b_layout.type, b_at + at));
    }
  }
  std::vector<Sum> sums(p.cols);
  for (int64_t i = 0; i < p.rows; ++i) {
    std::fill(sums.begin(), sums.end(), Sum{0});
    for (int64_t k = 0; k < p.inner; ++k) {
      const Sum factor = a[i * p.inner + k];
      for (int64_t j = 0; j < p.cols; ++j) sums[j] += factor * b[k * p.cols + j];
    }
    for (int64_t j = 0; j < p.cols; ++j) {
      double value = p.alpha * sums[j];
      if (p.beta != 0) {
        const int64_t at = At(p.c_layout, i, j) + batch * p.c_layout.batch_stride;
        value += p.beta * Load(p.c, p.c_layout.type, at);
      }
      if ((p.desc.epilogue & CUBLASLT_EPILOGUE_BIAS) != 0) {
        const int32_t type = p.desc.bias_type < 0 ? p.d_layout.type : p.desc.bias_type;
        value += Load(p.desc.bias, type, i + batch * p.desc.bias_stride);
      }
      if ((p.desc.epilogue & CUBLASLT_EPILOGUE_GELU) != 0) value = Gelu(value);
      const int64_t at = At(p.d_layout, i, j) + batch * p.d_layout.batch_stride;
      Store(p.d, p.d_layout.type, at, value);
    }
  }
}

template <typename Sum>
void RunProduct(const Product& p) {
  std::vector<Sum> a(p.rows * p.inner);
  std::vector<Sum> b(p.inner * p.cols);
  for (int64_t batch = 0; batch < p.d_layout.batch_count; ++batch) RunBatch(p, batch, a, b);
}

bool OnDevice(const void* pointer, size_t bytes) {
  bool on_device = false;
  return Machine::Get().Locate(pointer, bytes, &on_device) == cudaSuccess && on_device;
}

cublasStatus_t CheckPointers(const Product& p, const cublasLtMatmulAlgo_t* algo) {
  const void* pointers[4] = {p.a, p.b, p.c, p.d};
  const Layout* layouts[4] = {&p.a_layout, &p.b_layout, &p.c_layout, &p.d_layout};
  for (int i = 0; i < 4; ++i) {
    if (i == 2 && p.beta == 0) continue;
    const uint64_t alignment = algo == nullptr ? SizeOf(layouts[i]->type) : algo->data[i + 1];
    if (reinterpret_cast<uintptr_t>(pointers[i]) % alignment != 0 ||
        !OnDevice(pointers[i], Extent(*layouts[i]))) {
      return CUBLAS_STATUS_INVALID_VALUE;
    }
  }
  const bool bias = (p.desc.epilogue & CUBLASLT_EPILOGUE_BIAS) != 0;
  if (bias && !OnDevice(p.desc.bias, 1)) return CUBLAS_STATUS_INVALID_VALUE;
  if (algo != nullptr && algo->data[0] != kAlgo) return CUBLAS_STATUS_INVALID_VALUE;
  return CUBLAS_STATUS_SUCCESS;
}

template <typename T>
cublasStatus_t Take(T* to, const void* from, size_t size) {
  if (from == nullptr || size != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(to, from, size);
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace
}  // namespace emulated

using emulated::Take;

extern "C" {

const char* cublasLtGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
    default:
      return "CUBLAS_STATUS_INTERNAL_ERROR";
  }
}

const char* cublasLtGetStatusString(cublasStatus_t status) { return cublasLtGetStatusName(status); }

size_t cublasLtGetVersion() { return 130000; }

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  if (emulated::Machine::Get().Check(emulated::CurrentDevice()) != cudaSuccess) {
    return CUBLAS_STATUS_NOT_INITIALIZED;
  }
  *handle = new cublasLtContext{emulated::CurrentDevice()};
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                          uint64_t rows, uint64_t cols, int64_t ld) {
  if (!emulated::KnownType(type)) return CUBLAS_STATUS_INVALID_VALUE;
  *layout = new EmulatedMatrixLayout{type, CUBLASLT_ORDER_COL, rows, cols, ld};
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete layout;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attr,
                                                const void* buf, size_t size) {
  switch (attr) {
    case CUBLASLT_MATRIX_LAYOUT_TYPE:
      return Take(&layout->type, buf, size);
    case CUBLASLT_MATRIX_LAYOUT_ORDER:
      return Take(&layout->order, buf, size);
    case CUBLASLT_MATRIX_LAYOUT_ROWS:
      return Take(&layout->rows, buf, size);
    case CUBLASLT_MATRIX_LAYOUT_COLS:
      return Take(&layout->cols, buf, size);
    case CUBLASLT_MATRIX_LAYOUT_LD:
      return Take(&layout->ld, buf, size);
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
      return Take(&layout->batch_count, buf, size);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
      return Take(&layout->batch_stride, buf, size);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  *desc = new EmulatedMatmulDesc{compute, scale};
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
  delete desc;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attr, const void* buf,
                                              size_t size) {
  switch (attr) {
    case CUBLASLT_MATMUL_DESC_COMPUTE_TYPE:
      return Take(&desc->compute, buf, size);
    case CUBLASLT_MATMUL_DESC_SCALE_TYPE:
      return Take(&desc->scale, buf, size);
    case CUBLASLT_MATMUL_DESC_POINTER_MODE: {
      int32_t mode = 0;
      if (cublasStatus_t error = Take(&mode, buf, size)) return error;
      return mode == CUBLASLT_POINTER_MODE_HOST ? CUBLAS_STATUS_SUCCESS
                                                : CUBLAS_STATUS_NOT_SUPPORTED;
    }
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return Take(&desc->transpose_a, buf, size);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return Take(&desc->transpose_b, buf, size);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return Take(&desc->epilogue, buf, size);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return Take(&desc->bias, buf, size);
    case CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE:
      return Take(&desc->bias_stride, buf, size);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      return Take(&desc->bias_type, buf, size);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = new EmulatedMatmulPreference;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete preference;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attr,
                                                    const void* buf, size_t size) {
  uint32_t ignored = 0;
  switch (attr) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return Take(&preference->workspace, buf, size);
    case CUBLASLT_MATMUL_PREF_SEARCH_MODE:
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return Take(&ignored, buf, size);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return Take(&preference->alignment[attr - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], buf,
                  size);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int requested,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int* found) {
  if (found == nullptr || results == nullptr || requested <= 0) return CUBLAS_STATUS_INVALID_VALUE;
  *found = 0;
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  const EmulatedMatrixLayout* layouts[4] = {a, b, c, d};
  emulated::Product product;
  if (cublasStatus_t error = emulated::CheckShapes(desc, layouts, &product)) return error;
  results[0] = cublasLtMatmulHeuristicResult_t{};
  results[0].algo.data[0] = emulated::kAlgo;
  for (int i = 0; i < 4; ++i) {
    results[0].algo.data[i + 1] = preference == nullptr ? 256 : preference->alignment[i];
  }
  *found = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha,
                              const void* A, cublasLtMatrixLayout_t Adesc, const void* B,
                              cublasLtMatrixLayout_t Bdesc, const void* beta, const void* C,
                              cublasLtMatrixLayout_t Cdesc, void* D, cublasLtMatrixLayout_t Ddesc,
                              const cublasLtMatmulAlgo_t* algo, void*, size_t,
                              cudaStream_t stream) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  CUstream_st* of = nullptr;
  if (emulated::StreamOf(stream, &of) != cudaSuccess || of->device() != handle->device) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const EmulatedMatrixLayout* layouts[4] = {Adesc, Bdesc, Cdesc, Ddesc};
  emulated::Product product;
  if (cublasStatus_t error = emulated::CheckShapes(desc, layouts, &product)) return error;
  if (alpha == nullptr || beta == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  product.alpha = emulated::Load(alpha, desc->scale, 0);
  product.beta = emulated::Load(beta, desc->scale, 0);
  product.a = A;
  product.b = B;
  product.c = C;
  product.d = D;
  if (C == D && Cdesc->ld != Ddesc->ld) return CUBLAS_STATUS_INVALID_VALUE;
  if (cublasStatus_t error = emulated::CheckPointers(product, algo)) return error;
  emulated::Count(emulated::Machine::Get().counts.matmuls);
  of->Push([product] {
    if (product.desc.compute == CUBLAS_COMPUTE_64F) {
      emulated::RunProduct<double>(product);
    } else {
      emulated::RunProduct<float>(product);
    }
  });
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
