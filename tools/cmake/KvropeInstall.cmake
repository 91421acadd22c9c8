# One layout for the wheel and for C++: the Python package at the prefix, libraries, headers and CMake files below it.
include(CMakePackageConfigHelpers)

set(kvrope_libraries kvrope_cache_ops kvrope_torch)
set_target_properties(${kvrope_libraries} PROPERTIES INSTALL_RPATH
  "$ORIGIN;${KVROPE_TORCH_LIB_DIR};${CUDAToolkit_LIBRARY_DIR}")
install(TARGETS kvrope_kernels kvrope_cache_ops EXPORT kvropeTargets LIBRARY DESTINATION lib ARCHIVE DESTINATION lib)
install(TARGETS kvrope_torch LIBRARY DESTINATION lib)
install(FILES cache_ops/arguments.h cache_ops/cos_sin_table.h cache_ops/fault.h DESTINATION include/kvrope)
install(DIRECTORY kernels/ DESTINATION include/kvrope/kernels
  FILES_MATCHING PATTERN "*.h" PATTERN "*.cuh" PATTERN instantiations EXCLUDE)

install(EXPORT kvropeTargets NAMESPACE kvrope:: DESTINATION lib/cmake/kvrope)
configure_package_config_file(tools/cmake/kvropeConfig.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/kvropeConfig.cmake
  INSTALL_DESTINATION lib/cmake/kvrope)
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/kvropeConfigVersion.cmake COMPATIBILITY SameMajorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/kvropeConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/kvropeConfigVersion.cmake
  tools/cmake/KvropeTorchWithoutToolkit.cmake DESTINATION lib/cmake/kvrope)

if(KVROPE_BUILD_PYTHON)
  set_target_properties(_C PROPERTIES INSTALL_RPATH "$ORIGIN/lib")
  install(TARGETS _C LIBRARY DESTINATION .)
  install(DIRECTORY bindings/kvrope/ DESTINATION . FILES_MATCHING PATTERN "*.py" PATTERN "*.pyi" PATTERN "py.typed")
endif()
if(KVROPE_BUILD_TOOLS)
  set_target_properties(kvrope-regress PROPERTIES INSTALL_RPATH "$ORIGIN/../lib;${KVROPE_TORCH_LIB_DIR}")
  install(TARGETS kvrope-regress RUNTIME DESTINATION bin)
endif()
