# The emulator of CUDA itself; the backend's tests use it too.
if(COMMAND sherd_emulated_sources)
  sherd_emulated_sources(cuda_emulator_kernels SOURCES cuda_emulator_kernels.cu)
  sherd_test(cuda_emulator_test LIBS cuda_emulator_kernels LABELS tsan asan)
  sherd_test(cuda_emulator_gemm_test LIBS cuda_emulator LABELS asan)
  sherd_test(cuda_emulator_nccl_test LIBS cuda_emulator LABELS tsan asan)
endif()

# The backend's kernels, run by the emulator, beside those of the CPU.
if(TARGET sherd_cuda_emulated)
  sherd_test(cuda_emulated_backend_test LIBS sherd_cuda_emulated sherd::kernels LABELS cuda_build asan)
  foreach(test elementwise optimizer_step random reduce)
    sherd_test(cuda_${test}_test SOURCES cuda_${test}_test.cc ${PROJECT_SOURCE_DIR}/tests/support/accelerator.cc
      LIBS sherd_cuda_emulated sherd::kernels LABELS cuda_build asan)
  endforeach()
endif()
