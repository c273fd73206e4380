#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <tuple>
#include <vector>

#include "cublasLt.h"
#include "cuda_runtime.h"
#include "tests/support/cuda_emulator/emulator.h"

namespace sherd::testing {
namespace {

constexpr int kRows = 5;
constexpr int kCols = 7;
constexpr int kInner = 9;

// A matrix of small integers, exact in every type, with gaps between its rows or columns.
struct Matrix {
  int rows, cols;
  bool row_major;
  int batches = 1;
  std::vector<double> values{};  // row, col, batch: as memory has them, gaps included

  int ld() const { return (row_major ? cols : rows) + 2; }
  int stride() const { return ld() * (row_major ? rows : cols) + 3; }
  int At(int batch, int row, int col) const {
    return batch * stride() + (row_major ? row * ld() + col : col * ld() + row);
  }
  void Fill(int salt) {
    values.assign(batches * stride(), -77);
    for (int b = 0; b < batches; ++b) {
      for (int i = 0; i < rows; ++i) {
        for (int j = 0; j < cols; ++j) values[At(b, i, j)] = (5 * i + 3 * j + salt + b) % 7 - 3;
      }
    }
  }
};

size_t SizeOf(cudaDataType type) { return type == CUDA_R_64F ? 8 : type == CUDA_R_32F ? 4 : 2; }

// Small integers and halves only.
void Put(cudaDataType type, double value, char* at) {
  const auto f32 = static_cast<float>(value);
  const auto bits = std::bit_cast<uint32_t>(f32);
  if (type == CUDA_R_64F) std::memcpy(at, &value, 8);
  if (type == CUDA_R_32F) std::memcpy(at, &f32, 4);
  if (type == CUDA_R_16BF) std::memcpy(at, reinterpret_cast<const char*>(&bits) + 2, 2);
  if (type == CUDA_R_16F) {
    const auto half = static_cast<uint16_t>(
        value == 0 ? 0 : (bits >> 16 & 0x8000) | ((bits & 0x7fffffff) - 0x38000000) >> 13);
    std::memcpy(at, &half, 2);
  }
}

double Get(cudaDataType type, const char* at) {
  if (type == CUDA_R_64F) {
    double value;
    std::memcpy(&value, at, 8);
    return value;
  }
  uint32_t bits = 0;
  std::memcpy(reinterpret_cast<char*>(&bits) + (type == CUDA_R_32F ? 0 : 2), at,
              type == CUDA_R_32F ? 4 : 2);
  if (type == CUDA_R_16F) {
    const uint32_t half = bits >> 16;
    bits =
        (half & 0x7fff) == 0 ? 0 : ((half & 0x8000) << 16) + ((half & 0x7fff) << 13) + 0x38000000;
  }
  return std::bit_cast<float>(bits);
}

char* Upload(cudaDataType type, const std::vector<double>& values) {
  std::vector<char> bytes(values.size() * SizeOf(type));
  for (size_t i = 0; i < values.size(); ++i) Put(type, values[i], &bytes[i * SizeOf(type)]);
  char* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, bytes.size()), cudaSuccess);
  cudaMemcpy(memory, bytes.data(), bytes.size(), cudaMemcpyHostToDevice);
  return memory;
}

std::vector<double> Download(cudaDataType type, const char* memory, size_t count) {
  std::vector<char> bytes(count * SizeOf(type));
  EXPECT_EQ(cudaMemcpy(bytes.data(), memory, bytes.size(), cudaMemcpyDeviceToHost), cudaSuccess);
  std::vector<double> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = Get(type, &bytes[i * SizeOf(type)]);
  return values;
}

cublasLtMatrixLayout_t LayoutOf(const Matrix& matrix, cudaDataType type) {
  cublasLtMatrixLayout_t layout = nullptr;
  EXPECT_EQ(cublasLtMatrixLayoutCreate(&layout, type, matrix.rows, matrix.cols, matrix.ld()),
            CUBLAS_STATUS_SUCCESS);
  const int32_t order = matrix.row_major ? CUBLASLT_ORDER_ROW : CUBLASLT_ORDER_COL;
  const int32_t batches = matrix.batches;
  const int64_t stride = matrix.stride();
  cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_ORDER, &order, sizeof(order));
  cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batches,
                                   sizeof(batches));
  cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride,
                                   sizeof(stride));
  return layout;
}

template <typename T>
void Set(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attr, T value) {
  ASSERT_EQ(cublasLtMatmulDescSetAttribute(desc, attr, &value, sizeof(value)),
            CUBLAS_STATUS_SUCCESS);
}

struct Case {
  cudaDataType in = CUDA_R_32F;
  cudaDataType out = CUDA_R_32F;
  bool ta = false, tb = false;
  bool a_rows = false, b_rows = false, d_rows = false;
  double beta = 0;
  uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
};

// Everything that one product needs. The same memory is C and D.
class Product {
 public:
  explicit Product(const Case& what)
      : what_(what),
        a_{what.ta ? kInner : kRows, what.ta ? kRows : kInner, what.a_rows, 2},
        b_{what.tb ? kCols : kInner, what.tb ? kInner : kCols, what.b_rows, 2},
        d_{kRows, kCols, what.d_rows, 2} {
    a_.Fill(1);
    b_.Fill(2);
    d_.Fill(3);
    for (int i = 0; i < kRows; ++i) bias_.push_back(i - 2);
    a = Upload(what.in, a_.values);
    b = Upload(what.in, b_.values);
    d = Upload(what.out, d_.values);
    bias = Upload(what.out, bias_);
    a_layout = LayoutOf(a_, what.in);
    b_layout = LayoutOf(b_, what.in);
    d_layout = LayoutOf(d_, what.out);
    const bool f64 = what.in == CUDA_R_64F;
    cublasLtMatmulDescCreate(&desc, f64 ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F,
                             f64 ? CUDA_R_64F : CUDA_R_32F);
    Set(desc, CUBLASLT_MATMUL_DESC_TRANSA, int32_t{what.ta ? CUBLAS_OP_T : CUBLAS_OP_N});
    Set(desc, CUBLASLT_MATMUL_DESC_TRANSB, int32_t{what.tb ? CUBLAS_OP_T : CUBLAS_OP_N});
    Set(desc, CUBLASLT_MATMUL_DESC_EPILOGUE, what.epilogue);
    Set(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(bias));
    cublasLtCreate(&handle);
  }
  ~Product() {
    for (char* memory : {a, b, d, bias}) cudaFree(memory);
    for (auto layout : {a_layout, b_layout, d_layout}) cublasLtMatrixLayoutDestroy(layout);
    cublasLtMatmulDescDestroy(desc);
    cublasLtDestroy(handle);
  }

  cublasStatus_t Run(const cublasLtMatmulAlgo_t* algo = nullptr) {
    const double alpha = 2;
    const float alpha32 = 2;
    const auto beta32 = static_cast<float>(what_.beta);
    const bool f64 = what_.in == CUDA_R_64F;
    const void* scale = f64 ? static_cast<const void*>(&alpha) : &alpha32;
    const void* keep = f64 ? static_cast<const void*>(&what_.beta) : &beta32;
    return cublasLtMatmul(handle, desc, scale, a, a_layout, b, b_layout, keep, d, d_layout, d,
                          d_layout, algo, nullptr, 0, nullptr);
  }

  // By plain loops; gaps keep their values.
  std::vector<double> Expected() const {
    std::vector<double> values = d_.values;
    for (int batch = 0; batch < 2; ++batch) {
      for (int i = 0; i < kRows; ++i) {
        for (int j = 0; j < kCols; ++j) {
          double sum = 0;
          for (int k = 0; k < kInner; ++k) {
            sum += a_.values[what_.ta ? a_.At(batch, k, i) : a_.At(batch, i, k)] *
                   b_.values[what_.tb ? b_.At(batch, j, k) : b_.At(batch, k, j)];
          }
          double& value = values[d_.At(batch, i, j)];
          value = 2 * sum + what_.beta * value;
          if (what_.epilogue & 4) value += bias_[i];
          if (what_.epilogue & 32) {
            value *=
                0.5 *
                (1 + std::tanh(std::sqrt(2 / M_PI) * (value + 0.044715 * value * value * value)));
          }
        }
      }
    }
    return values;
  }
  std::vector<double> Result() const {
    cudaDeviceSynchronize();
    return Download(what_.out, d, d_.values.size());
  }

  char *a, *b, *d, *bias;
  cublasLtMatrixLayout_t a_layout, b_layout, d_layout;
  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtHandle_t handle = nullptr;

 private:
  Case what_;
  Matrix a_, b_, d_;
  std::vector<double> bias_;
};

TEST(CudaEmulatorGemm, EveryTransposeOrderAndTypeIsThePlainProduct) {
  emulated::Configure({});
  const std::tuple<cudaDataType, cudaDataType> types[] = {{CUDA_R_32F, CUDA_R_32F},
                                                          {CUDA_R_64F, CUDA_R_64F},
                                                          {CUDA_R_16BF, CUDA_R_32F},
                                                          {CUDA_R_16F, CUDA_R_16F}};
  for (const auto& [in, out] : types) {
    for (int bits = 0; bits < 32; ++bits) {
      for (const double beta : {0.0, 3.0}) {
        Product product({in, out, (bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0,
                         (bits & 8) != 0, (bits & 16) != 0, beta});
        ASSERT_EQ(product.Run(), CUBLAS_STATUS_SUCCESS);
        ASSERT_EQ(product.Result(), product.Expected()) << in << " " << out << " " << bits;
      }
    }
  }
  EXPECT_EQ(emulated::ReadStatistics().matmuls, 4 * 32 * 2);
}

TEST(CudaEmulatorGemm, OutputsAreRoundedToTheirType) {
  emulated::Configure({});
  Product product({CUDA_R_16BF, CUDA_R_16BF, false, true, false, false, false, 1});
  ASSERT_EQ(product.Run(), CUBLAS_STATUS_SUCCESS);
  const auto expected = product.Expected();
  const auto result = product.Result();
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_LE(std::abs(result[i] - expected[i]), std::abs(expected[i]) / 256);
  }
}

TEST(CudaEmulatorGemm, EpiloguesAddTheBiasOfARowAndBend) {
  emulated::Configure({});
  for (const uint32_t epilogue : {CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_GELU_BIAS}) {
    Product product({CUDA_R_64F, CUDA_R_64F, true, false, false, false, false, 1, epilogue});
    ASSERT_EQ(product.Run(), CUBLAS_STATUS_SUCCESS);
    const auto expected = product.Expected();
    const auto result = product.Result();
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(result[i], expected[i], 1e-12);
  }
}

TEST(CudaEmulatorGemm, WhatDoesNotFitIsRefused) {
  emulated::Configure({});
  const auto changed = [](auto change) {
    Product product({});
    change(product);
    return product.Run();
  };
  EXPECT_EQ(changed([](Product&) {}), CUBLAS_STATUS_SUCCESS);
  const uint64_t six = 6;
  const int64_t four = 4;
  const int32_t one = 1;
  const int32_t bf16 = CUDA_R_16BF;
  const auto set = [](cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t attr,
                      const auto& value) {
    cublasLtMatrixLayoutSetAttribute(layout, attr, &value, sizeof(value));
  };
  EXPECT_EQ(changed([&](Product& p) { set(p.b_layout, CUBLASLT_MATRIX_LAYOUT_ROWS, six); }),
            CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(changed([&](Product& p) { set(p.a_layout, CUBLASLT_MATRIX_LAYOUT_LD, four); }),
            CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(changed([&](Product& p) { set(p.a_layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, one); }),
            CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(changed([&](Product& p) { set(p.a_layout, CUBLASLT_MATRIX_LAYOUT_TYPE, bf16); }),
            CUBLAS_STATUS_NOT_SUPPORTED)
      << "A and B differ in type";
  EXPECT_EQ(changed([&](Product& p) {
              Set(p.desc, CUBLASLT_MATMUL_DESC_EPILOGUE, uint32_t{CUBLASLT_EPILOGUE_BIAS});
              Set(p.desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(&six));
            }),
            CUBLAS_STATUS_INVALID_VALUE)
      << "a bias in host memory";
  Product product({});
  EXPECT_EQ(cublasLtMatmulDescSetAttribute(product.desc, CUBLASLT_MATMUL_DESC_TRANSA, &six, 8),
            CUBLAS_STATUS_INVALID_VALUE)
      << "the size of the attribute";
}

TEST(CudaEmulatorGemm, AnAlgorithmHoldsForTheAlignmentItWasAskedFor) {
  emulated::Configure({});
  Product product({});
  cublasLtMatmulPreference_t preference = nullptr;
  ASSERT_EQ(cublasLtMatmulPreferenceCreate(&preference), CUBLAS_STATUS_SUCCESS);
  cublasLtMatmulHeuristicResult_t result;
  int found = 0;
  for (const uint32_t alignment : {256u, 4u}) {
    for (const auto attr :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES}) {
      cublasLtMatmulPreferenceSetAttribute(preference, attr, &alignment, sizeof(alignment));
    }
    ASSERT_EQ(cublasLtMatmulAlgoGetHeuristic(product.handle, product.desc, product.a_layout,
                                             product.b_layout, product.d_layout, product.d_layout,
                                             preference, 1, &result, &found),
              CUBLAS_STATUS_SUCCESS);
    ASSERT_EQ(found, 1);
    product.a += alignment == 4 ? 0 : 4;  // stays inside of the memory: the last gap is longer
    EXPECT_EQ(product.Run(&result.algo),
              alignment == 4 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE);
  }
  product.a -= 4;
  cublasLtMatmulPreferenceDestroy(preference);
}

}  // namespace
}  // namespace sherd::testing
