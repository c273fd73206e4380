# The emulator of CUDA itself; the backend's tests use it too.
if(COMMAND sherd_emulated_sources)
  sherd_emulated_sources(cuda_emulator_kernels SOURCES cuda_emulator_kernels.cu)
  sherd_test(cuda_emulator_test LIBS cuda_emulator_kernels LABELS tsan asan)
  sherd_test(cuda_emulator_gemm_test LIBS cuda_emulator LABELS asan)
  sherd_test(cuda_emulator_nccl_test LIBS cuda_emulator LABELS tsan asan)
  find_program(SHERD_PYTHON NAMES python3 PATHS /usr/bin NO_DEFAULT_PATH)
  find_program(SHERD_PYTHON NAMES python3 REQUIRED)
  sherd_script_test(cuda_emulator_headers_test
    COMMAND ${SHERD_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/cuda_emulator_headers_test.py)
endif()

# The backend's kernels, run by the emulator, beside those of the CPU. Not for the sanitizers: the emulator traps what lies
# outside of memory itself, and the backend takes minutes to compile with them.
if(TARGET sherd_cuda_emulated)
  sherd_test(cuda_emulated_backend_test LIBS sherd_cuda_emulated sherd::kernels LABELS cuda_build)
  foreach(test elementwise indices losses matmul optimizer_step random reduce rows)
    sherd_test(cuda_${test}_test SOURCES cuda_${test}_test.cc ${PROJECT_SOURCE_DIR}/tests/support/accelerator.cc
      LIBS sherd_cuda_emulated sherd::kernels sherd::matmul LABELS cuda_build)
  endforeach()
  sherd_test(cuda_attention_test SOURCES cuda_attention_test.cc ${PROJECT_SOURCE_DIR}/tests/support/accelerator.cc
    LIBS sherd_cuda_emulated sherd::kernels sherd::matmul LABELS cuda_build TIMEOUT 900)
endif()
