# The CUDA backend's sources, for the library and for the emulated one of the tests.
set(SHERD_CUDA_SOURCES backend.cc blas.cc check.cc cuda_device.cc driver.cc internal/attention_prepare.cu queue.cc
  range.cc)
# In runtime/kernels, one for each header.
set(SHERD_CUDA_KERNELS
  attention.cu
  attention_backward.cu
  broadcast.cu
  cross_entropy.cu
  dropout.cu
  elementwise.cu
  embedding.cu
  indexing.cu
  l2_normalize.cu
  layer_norm.cu
  matmul.cu
  max_over.cu
  optimizer_step.cu
  pointwise_loss.cu
  power.cu
  random.cu
  reduce.cu
  rms_norm.cu
  rope.cu
  softmax.cu
  sum_over.cu
  unary.cu
)
