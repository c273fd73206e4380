# The CUDA backend's sources, for the library and for the emulated one of the tests.
set(SHERD_CUDA_SOURCES backend.cc blas.cc check.cc cuda_device.cc driver.cc queue.cc range.cc)
# In runtime/kernels, one for each header.
set(SHERD_CUDA_KERNELS
  cross_entropy.cu
  embedding.cu
  indexing.cu
  l2_normalize.cu
  layer_norm.cu
  matmul.cu
  pointwise_loss.cu
  rms_norm.cu
  rope.cu
  softmax.cu
)
