# The contrastive example: its parts, and the program as its users start it.
if(NOT TARGET sherd_example_contrastive)
  return()
endif()
sherd_test(contrastive_test LIBS sherd_example_contrastive sherd_test_support LABELS contrastive tsan asan)
sherd_script_test(contrastive_run_test TIMEOUT 600 LABELS contrastive
  COMMAND ${SHERD_PYTHON} ${CMAKE_CURRENT_LIST_DIR}/contrastive_run_test.py $<TARGET_FILE:sherd_train_contrastive>)
sherd_label_targets(sherd_train_contrastive process)
sherd_label_targets(sherd_train_contrastive contrastive)
