# Finds the LibTorch inside a `torch` wheel, a ROCm or CUDA PyTorch image, or an unpacked LibTorch archive.
#
# torch's own CMake package fails where only part of a CUDA toolkit is installed, and drags the whole toolkit into a
# CPU program. This file needs nothing but the folder.
#
# Input   TORCH_DIR    the folder that holds include/ and lib/ (variable or environment), or
#         PYTHON       the interpreter to ask (default: .venv/bin/python3 beside the sources, then python3)
# Output  LibTorch_FOUND, LibTorch_VERSION, LibTorch_DIR, LibTorch_FLAVOUR (CPU, CUDA or ROCm), LibTorch_REASON
#         target megalith::torch

set(LibTorch_REASON "")
set(_torch_dir "${TORCH_DIR}")
if(NOT _torch_dir AND DEFINED ENV{TORCH_DIR})
  set(_torch_dir "$ENV{TORCH_DIR}")
endif()
if(NOT _torch_dir)
  set(_pythons ${PYTHON} "${CMAKE_SOURCE_DIR}/.venv/bin/python3" python3)
  foreach(_python IN LISTS _pythons)
    execute_process(
      COMMAND "${_python}" -c
              "import importlib.util as u, os; s = u.find_spec('torch'); print(os.path.dirname(s.origin) if s else '')"
      OUTPUT_VARIABLE _found OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE _code)
    if(_code EQUAL 0 AND _found)
      set(_torch_dir "${_found}")
      break()
    endif()
  endforeach()
endif()

if(NOT _torch_dir)
  set(LibTorch_REASON "no torch found: run 'make setup', or set TORCH_DIR to a folder with include/ and lib/")
elseif(NOT EXISTS "${_torch_dir}/include/torch/csrc/autograd/custom_function.h")
  set(LibTorch_REASON "${_torch_dir} holds no LibTorch headers (include/torch/csrc/autograd/custom_function.h)")
elseif(NOT EXISTS "${_torch_dir}/lib/libtorch_cpu.so")
  set(LibTorch_REASON "${_torch_dir} holds no lib/libtorch_cpu.so")
endif()

if(LibTorch_REASON STREQUAL "")
  get_filename_component(LibTorch_DIR "${_torch_dir}" REALPATH)

  set(LibTorch_VERSION "")
  foreach(_header IN ITEMS torch/headeronly/version.h torch/csrc/api/include/torch/version.h)
    if(LibTorch_VERSION STREQUAL "" AND EXISTS "${LibTorch_DIR}/include/${_header}")
      file(STRINGS "${LibTorch_DIR}/include/${_header}" _lines REGEX "#define TORCH_VERSION_(MAJOR|MINOR|PATCH) [0-9]+")
      string(REGEX MATCHALL "[0-9]+" _numbers "${_lines}")
      string(REPLACE ";" "." LibTorch_VERSION "${_numbers}")
    endif()
  endforeach()
  if(LibTorch_VERSION VERSION_LESS 2.11)
    message(FATAL_ERROR "torch ${LibTorch_VERSION} in ${LibTorch_DIR} is too old: Megalith needs 2.11 or newer.\n"
                        "  pip install 'torch>=2.11', or point TORCH_DIR to a newer one")
  elseif(NOT LibTorch_VERSION MATCHES "^2\\.1[123]\\.")
    message(WARNING "torch ${LibTorch_VERSION} is newer than those Megalith is tested with (2.11 and 2.13)")
  endif()

  if(EXISTS "${LibTorch_DIR}/lib/libtorch_hip.so")
    set(LibTorch_FLAVOUR ROCm)
  elseif(EXISTS "${LibTorch_DIR}/lib/libtorch_cuda.so")
    set(LibTorch_FLAVOUR CUDA)
  else()
    set(LibTorch_FLAVOUR CPU)
  endif()

  # Same OpenMP runtime as torch, so that there is one pool of threads.
  file(GLOB _gomp "${LibTorch_DIR}/lib/libgomp*.so*" "${LibTorch_DIR}/../torch.libs/libgomp*.so*")
  list(APPEND _gomp "")
  list(GET _gomp 0 LibTorch_OPENMP)

  add_library(megalith_torch INTERFACE)
  add_library(megalith::torch ALIAS megalith_torch)
  target_include_directories(megalith_torch SYSTEM INTERFACE
    "${LibTorch_DIR}/include" "${LibTorch_DIR}/include/torch/csrc/api/include")
  target_link_directories(megalith_torch INTERFACE "${LibTorch_DIR}/lib")
  target_link_libraries(megalith_torch INTERFACE
    "${LibTorch_DIR}/lib/libtorch_cpu.so" "${LibTorch_DIR}/lib/libc10.so" ${LibTorch_OPENMP})
  if(NOT LibTorch_OPENMP)
    target_link_options(megalith_torch INTERFACE -fopenmp)
  endif()
  if(LibTorch_FLAVOUR STREQUAL "CUDA")
    set(_gpu torch_cuda c10_cuda)
  elseif(LibTorch_FLAVOUR STREQUAL "ROCm")
    set(_gpu torch_hip c10_hip)
  endif()
  foreach(_lib IN LISTS _gpu)
    # Nothing of ours names a symbol of the GPU library: without --no-as-needed the linker would drop it, and no
    # device would be registered.
    target_link_libraries(megalith_torch INTERFACE "-Wl,--no-as-needed,${LibTorch_DIR}/lib/lib${_lib}.so,--as-needed")
  endforeach()
  target_compile_options(megalith_torch INTERFACE -fopenmp)
  set(LibTorch_FOUND TRUE)
endif()
