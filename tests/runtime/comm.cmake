foreach(test comm_agree_test comm_group_test comm_split_test comm_wire_test comm_failure_test comm_diagnosis_test comm_checked_test comm_describe_test comm_exchange_test
             comm_failure_file_test comm_listener_test comm_meeting_end_test comm_regroup_test comm_session_test)
  sherd_test(${test} LIBS sherd::comm sherd_test_support LABELS tsan asan)
endforeach()
foreach(test comm_store_test comm_launch_test)
  sherd_test(${test} SOURCES ${test}.cc fake_torch_store.cc LIBS sherd::comm LABELS tsan asan)
endforeach()

# The same tests for buffers of a device, through MakeStagedGroup.
foreach(test group wire)
  sherd_test(comm_${test}_staged_test SOURCES comm_${test}_test.cc staged_ranks.cc fake_device.cc through_device.cc
    LIBS sherd::comm sherd_test_support LABELS tsan asan)
  # What Gloo's own staging costs depends on the sizes that it sees.
  set_property(TEST comm_${test}_staged_test APPEND PROPERTY ENVIRONMENT "GTEST_FILTER=-CommStaging.*:CommWireCost.*")
endforeach()
sherd_test(comm_staged_test SOURCES comm_staged_test.cc fake_device.cc LIBS sherd::comm sherd_test_support LABELS tsan asan)

# And over NCCL of the emulator; a rank is a thread with a device.
if(TARGET sherd_nccl_emulated)
  foreach(test group wire)
    sherd_test(comm_${test}_nccl_test SOURCES comm_${test}_test.cc nccl_ranks.cc through_device.cc
      LIBS sherd_nccl_emulated sherd_cuda_emulated sherd::comm sherd_test_support LABELS cuda_build)
    set_property(TEST comm_${test}_nccl_test APPEND PROPERTY ENVIRONMENT "GTEST_FILTER=-CommStaging.*:CommWireCost.*")
  endforeach()
  foreach(test comm_nccl_test comm_world_device_test)
    sherd_test(${test} LIBS sherd_nccl_emulated sherd_cuda_emulated sherd::comm sherd_test_support LABELS cuda_build)
  endforeach()
endif()
