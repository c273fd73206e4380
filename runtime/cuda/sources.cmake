# The CUDA backend's sources, for the library and for the emulated one of the tests.
set(SHERD_CUDA_SOURCES backend.cc blas.cc check.cc cuda_device.cc driver.cc queue.cc range.cc)
# In runtime/kernels, one for each header.
set(SHERD_CUDA_KERNELS
  matmul.cu)
