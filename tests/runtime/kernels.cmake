# All share one way of using threads, so a few stand for it under ThreadSanitizer: a plain loop, blocks
# of rows with partial sums, shared primitives. The others would take minutes there.
set(threaded cross_entropy embedding matmul reduce rms_norm)
foreach(test attention broadcast cross_entropy dropout elementwise embedding indexing isa layer_norm math matmul
    optimizer_step random reduce rms_norm rope softmax unary)
  set(tsan "")
  if(test IN_LIST threaded)
    set(tsan tsan)
  endif()
  sherd_test(kernels_${test}_test LIBS sherd::kernels sherd::matmul LABELS ${tsan} asan)
endforeach()

# Sanitizers add symbols of their own.
if(TARGET sherd_kernels_avx512 AND NOT SHERD_SANITIZE)
  sherd_script_test(kernels_symbols_test
    COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/kernels_symbols_test.sh $<TARGET_OBJECTS:sherd_kernels_baseline>
      $<TARGET_OBJECTS:sherd_kernels_avx2> $<TARGET_OBJECTS:sherd_kernels_avx512>
      COMMAND_EXPAND_LISTS)
endif()
