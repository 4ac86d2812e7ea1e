# GPU kernels: src/ops/<operator>/gpu.cu, one source for nvcc and hipcc, free of torch headers. Where they are not built, the
# reference operators run on the GPU.
#
# Output  MEGALITH_GPU         CUDA, HIP or empty
#         MEGALITH_GPU_REASON  why it is empty, in words for the summary

set(MEGALITH_GPU "")
set(MEGALITH_GPU_REASON "")

# megalith_try_gpu(<option> <flavour of torch> <CMake's language> <compiler>): sets MEGALITH_GPU, or adds a reason.
macro(megalith_try_gpu option flavour language compiler)
  set(_reason "")
  file(GLOB _kernels CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/src/ops/*/gpu.cu")
  if(NOT MEGALITH_${option})
    set(_reason "switched off (MEGALITH_${option}=OFF)")
  elseif(NOT LibTorch_FLAVOUR STREQUAL "${flavour}")
    set(_reason "this torch is the ${LibTorch_FLAVOUR} build")
  elseif(NOT _kernels)
    set(_reason "src/ops holds no gpu.cu; the reference operators run on the GPU")
  else()
    include(CheckLanguage)
    check_language(${language})
    if(NOT CMAKE_${language}_COMPILER)
      set(_reason "no ${compiler} found")
    endif()
  endif()
  if(_reason STREQUAL "")
    set(MEGALITH_GPU ${language})
  elseif(MEGALITH_${option} STREQUAL "ON")
    message(FATAL_ERROR "MEGALITH_${option} is ON, but ${_reason}")
  else()
    string(APPEND MEGALITH_GPU_REASON "${MEGALITH_GPU_SEPARATOR}${flavour}: ${_reason}")
    set(MEGALITH_GPU_SEPARATOR "; ")
  endif()
endmacro()

# megalith_known_hip_architectures(<compiler> <variable> <architecture…>): those that the compiler knows.
function(megalith_known_hip_architectures compiler variable)
  set(empty "${CMAKE_BINARY_DIR}/CMakeFiles/empty_kernel.hip")
  file(WRITE "${empty}" "")
  set(known "")
  foreach(architecture IN LISTS ARGN)
    execute_process(COMMAND "${compiler}" -x hip --offload-arch=${architecture} --cuda-device-only -nogpuinc -nogpulib
                            -fsyntax-only "${empty}"
                    RESULT_VARIABLE result OUTPUT_QUIET ERROR_QUIET)
    if(result EQUAL 0)
      list(APPEND known ${architecture})
    endif()
  endforeach()
  if(NOT known)
    message(FATAL_ERROR "${compiler} knows none of ${ARGN}; name an architecture with CMAKE_HIP_ARCHITECTURES")
  endif()
  set(${variable} ${known} PARENT_SCOPE)
endfunction()

foreach(_option IN ITEMS CUDA ROCM)
  string(TOUPPER "${MEGALITH_${_option}}" MEGALITH_${_option})
  if(NOT MEGALITH_${_option} MATCHES "^(ON|OFF|AUTO)$")
    message(FATAL_ERROR "MEGALITH_${_option} is '${MEGALITH_${_option}}'; use ON, OFF or AUTO")
  endif()
endforeach()

set(MEGALITH_GPU_SEPARATOR "")
megalith_try_gpu(CUDA CUDA CUDA nvcc)
if(NOT MEGALITH_GPU)
  megalith_try_gpu(ROCM ROCm HIP hipcc)
endif()
if(LibTorch_FLAVOUR STREQUAL "CPU" AND MEGALITH_CUDA STREQUAL "AUTO" AND MEGALITH_ROCM STREQUAL "AUTO")
  set(MEGALITH_GPU_REASON "this torch is the CPU build")
endif()

if(MEGALITH_GPU)
  # Here, not where the kernels are: a language belongs to the folder that enables it and those below.
  set(_chosen ON)
  if(MEGALITH_GPU STREQUAL "CUDA" AND NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 80 90)
    set(_chosen OFF)
  endif()
  if(MEGALITH_GPU STREQUAL "HIP" AND NOT DEFINED CMAKE_HIP_ARCHITECTURES)
    # Otherwise CMake asks the GPU of this machine, which there need not be.
    megalith_known_hip_architectures("${CMAKE_HIP_COMPILER}" CMAKE_HIP_ARCHITECTURES gfx90a gfx942 gfx950)
  endif()
  enable_language(${MEGALITH_GPU})
  # scripts/gpu/registers.py looks at these three.
  if(NOT _chosen AND CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 12.8)
    list(APPEND CMAKE_CUDA_ARCHITECTURES 100)
  endif()
  # CMake 3.25 does not know yet that nvcc has C++20.
  if(MEGALITH_GPU STREQUAL "CUDA" AND NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
    list(APPEND CMAKE_CUDA20_COMPILE_FEATURES cuda_std_20)
    list(APPEND CMAKE_CUDA_COMPILE_FEATURES cuda_std_20)
  endif()
  set(CMAKE_${MEGALITH_GPU}_STANDARD 20)
  set(CMAKE_${MEGALITH_GPU}_STANDARD_REQUIRED ON)
endif()
