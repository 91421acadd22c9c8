# Finds Python, its torch and, where wanted, the CUDA toolkit. Sets KVROPE_WITH_CUDA and imports target `torch`.

find_package(Python REQUIRED COMPONENTS Interpreter Development.Module)
# pip's build isolation hides the environment's torch by way of PYTHONPATH: -E looks past it.
foreach(flags "" "-E")
  execute_process(
    COMMAND ${Python_EXECUTABLE} ${flags}
      -c "import torch; print(torch.utils.cmake_prefix_path, torch.version.cuda or '', sep=';')"
    OUTPUT_VARIABLE torch_facts OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_VARIABLE torch_error RESULT_VARIABLE torch_result)
  if(torch_result EQUAL 0)
    break()
  endif()
endforeach()
if(NOT torch_result EQUAL 0)
  message(FATAL_ERROR "kvrope builds against the torch of ${Python_EXECUTABLE}, which does not import one.\n"
    "Install torch there first, then `pip install --no-build-isolation .`\n${torch_error}")
endif()
list(GET torch_facts 0 torch_prefix)
list(GET torch_facts 1 torch_cuda)

set(KVROPE_WITH_CUDA OFF)
if(KVROPE_CUDA STREQUAL "OFF")
  set(no_cuda_reason "KVROPE_CUDA is OFF")
elseif(torch_cuda STREQUAL "")
  set(no_cuda_reason "this torch is built without CUDA")
else()
  include(CheckLanguage)
  set(CMAKE_CUDA_ARCHITECTURES OFF)  # targets say their own
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    set(KVROPE_WITH_CUDA ON)
  else()
    set(no_cuda_reason "no CUDA compiler (nvcc) is found")
  endif()
endif()
if(KVROPE_CUDA STREQUAL "ON" AND NOT KVROPE_WITH_CUDA)
  message(FATAL_ERROR "KVROPE_CUDA is ON, but ${no_cuda_reason}")
endif()
if(KVROPE_WITH_CUDA)
  enable_language(CUDA)
  set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)
  find_package(CUDAToolkit REQUIRED)
else()
  message(STATUS "kvrope: CPU kernel alone: ${no_cuda_reason}")
endif()

# Torch adds flags and architectures of its own to every CUDA target, and asks for a toolkit it may not need.
set(saved_cuda_flags "${CMAKE_CUDA_FLAGS}")
list(APPEND CMAKE_PREFIX_PATH ${torch_prefix})
if(NOT KVROPE_WITH_CUDA AND NOT torch_cuda STREQUAL "")
  set(kvrope_torch_without_toolkit ON)
endif()
if(kvrope_torch_without_toolkit)
  cmake_path(GET torch_prefix PARENT_PATH torch_share)
  cmake_path(GET torch_share PARENT_PATH TORCH_INSTALL_PREFIX)
  include(KvropeTorchWithoutToolkit)
else()
  set(TORCH_CUDA_ARCH_LIST 9.0)  # any: it keeps torch from running a program to ask the GPU
  find_package(Torch REQUIRED)
endif()
set(CMAKE_CUDA_FLAGS "${saved_cuda_flags}")
set(KVROPE_TORCH_LIB_DIR ${TORCH_INSTALL_PREFIX}/lib)
