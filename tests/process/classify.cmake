# The classifier of examples/classify, as its users start it.
if(NOT TARGET sherd_train_classifier)
  return()
endif()
find_program(SHERD_PYTHON NAMES python3 PATHS /usr/bin NO_DEFAULT_PATH)
find_program(SHERD_PYTHON NAMES python3 REQUIRED)
sherd_script_test(classify_run_test TIMEOUT 900
  COMMAND ${SHERD_PYTHON} ${CMAKE_CURRENT_LIST_DIR}/classify_run_test.py $<TARGET_FILE:sherd_train_classifier>)
sherd_label_targets(sherd_train_classifier process)
