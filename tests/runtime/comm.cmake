foreach(test comm_group_test comm_failure_test)
  sherd_test(${test} LIBS sherd::comm sherd_test_support LABELS tsan asan)
endforeach()
