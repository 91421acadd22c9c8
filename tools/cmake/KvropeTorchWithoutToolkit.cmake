# A CUDA torch, but no toolkit: TorchConfig.cmake would refuse. The CPU libraries in TORCH_INSTALL_PREFIX are all we need.
if(NOT TARGET torch_cpu_only)
  add_library(torch_cpu_only INTERFACE IMPORTED)
  target_include_directories(torch_cpu_only INTERFACE
    ${TORCH_INSTALL_PREFIX}/include ${TORCH_INSTALL_PREFIX}/include/torch/csrc/api/include)
  target_link_libraries(torch_cpu_only INTERFACE
    ${TORCH_INSTALL_PREFIX}/lib/libtorch_cpu.so ${TORCH_INSTALL_PREFIX}/lib/libc10.so)
endif()
set(TORCH_LIBRARIES torch_cpu_only)
