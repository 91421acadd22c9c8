# cmake -DSOURCE=... -DOUTPUT=... -DVERSION=... -DCUDA=... -P build_info.cmake: writes the header when it changes.
execute_process(COMMAND git -C ${SOURCE} rev-parse HEAD
  OUTPUT_VARIABLE COMMIT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE no_commit)
set(IS_DIRTY false)
if(no_commit)
  set(COMMIT "")
else()
  execute_process(COMMAND git -C ${SOURCE} status --porcelain OUTPUT_VARIABLE changes ERROR_QUIET)
  if(changes)
    set(IS_DIRTY true)
  endif()
endif()
configure_file(${CMAKE_CURRENT_LIST_DIR}/build_info.h.in ${OUTPUT} @ONLY)
