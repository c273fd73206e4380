# The preference example: its loss, a step of it, and the program as its users start it.
if(NOT TARGET sherd_example_preference)
  return()
endif()
sherd_test(preference_test LIBS sherd_example_preference sherd_test_support)
sherd_script_test(preference_run_test TIMEOUT 600
  COMMAND ${SHERD_PYTHON} ${CMAKE_CURRENT_LIST_DIR}/preference_run_test.py $<TARGET_FILE:sherd_train_preference>
  ${PROJECT_SOURCE_DIR}/examples/preference/make_pairs.py)
sherd_label_targets(sherd_train_preference process)
