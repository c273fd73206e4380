foreach(test attention cross_entropy dropout elementwise embedding isa matmul optimizer_step random reduce
    rms_norm rope)
  sherd_test(kernels_${test}_test LIBS sherd::kernels LABELS tsan asan)
endforeach()
