# The kernels of src/ops/<operator>/: cpu.cc and cpu_*.cc, compiled once for each instruction set (cpu/capability.h chooses
# at run time), and gpu.cu, when cmake/Gpu.cmake found a compiler.
file(GLOB kernel_sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/ops/*/cpu.cc" "${CMAKE_CURRENT_SOURCE_DIR}/ops/*/cpu_*.cc")

# Its tiles take as long to compile as a unity file's other sources together.
set_source_files_properties("${CMAKE_CURRENT_SOURCE_DIR}/ops/linear/cpu_float.cc" PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)

# megalith_cpu_kernels(<capability> <flags…>): the flags are those with which ATen builds its own kernels.
function(megalith_cpu_kernels capability)
  string(TOLOWER "megalith_ops_kernels_${capability}" target)
  add_library(${target} OBJECT ${kernel_sources})
  set_target_properties(${target} PROPERTIES UNITY_BUILD_BATCH_SIZE 5)  # they take long: small enough for all cores
  target_include_directories(${target} PRIVATE "${CMAKE_SOURCE_DIR}/src")
  target_link_libraries(${target} PRIVATE megalith::torch megalith_warnings)
  # -fopenmp comes with megalith::torch: without it at::parallel_for is serial.
  target_compile_options(${target} PRIVATE -O3 ${ARGN})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # g++ 12 warns inside its own AVX-512 intrinsics (GCC bug 105593).
    target_compile_options(${target} PRIVATE -Wno-maybe-uninitialized -Wno-uninitialized)
  endif()
  target_compile_definitions(${target} PRIVATE CPU_CAPABILITY=${capability} CPU_CAPABILITY_${capability})
  target_sources(megalith_ops PRIVATE $<TARGET_OBJECTS:${target}>)
endfunction()

megalith_cpu_kernels(DEFAULT)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  megalith_cpu_kernels(AVX2 -mavx2 -mfma -mf16c)
  megalith_cpu_kernels(AVX512 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx2 -mfma -mf16c)
endif()

# Adapters with a table for GPUs are objects of their own in the library, so that a program of the tests can have others in
# their place (tests/pretend).
file(GLOB gpu_kernels CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/ops/*/gpu.cu")
set(gpu_adapters "")
foreach(kernel IN LISTS gpu_kernels)
  get_filename_component(folder "${kernel}" DIRECTORY)
  get_filename_component(name "${folder}" NAME)
  list(APPEND gpu_adapters "${folder}/${name}.cc")
endforeach()
set_source_files_properties(${gpu_adapters} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
set_property(TARGET megalith_ops PROPERTY MEGALITH_GPU_ADAPTERS "${gpu_adapters}")

# ops/gpu/blas.cc calls the vendor's library for matrix products, which torch loads. Only its headers are needed.
set(blas "${CMAKE_CURRENT_SOURCE_DIR}/ops/gpu/blas.cc")
set_source_files_properties("${blas}" PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
if(MEGALITH_GPU STREQUAL "CUDA")
  file(GLOB wheels "${LibTorch_DIR}/../nvidia/cu*/include")
  find_path(MEGALITH_BLAS_HEADERS cublasLt.h HINTS ${wheels} ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
  set(blas_options -DMEGALITH_BLAS)
  foreach(folder IN LISTS MEGALITH_BLAS_HEADERS CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES)
    list(APPEND blas_options "-isystem${folder}")
  endforeach()
elseif(MEGALITH_GPU STREQUAL "HIP")
  find_path(MEGALITH_BLAS_HEADERS hipblaslt/hipblaslt.h HINTS "$ENV{ROCM_PATH}/include" /opt/rocm/include)
  set(blas_options -DMEGALITH_BLAS -DMEGALITH_BLAS_HIP -D__HIP_PLATFORM_AMD__ "-isystem${MEGALITH_BLAS_HEADERS}")
endif()
if(MEGALITH_GPU AND MEGALITH_BLAS_HEADERS)
  set_source_files_properties("${blas}" PROPERTIES COMPILE_OPTIONS "${blas_options}")
elseif(MEGALITH_GPU)
  message(STATUS "No headers of cublasLt or hipBLASLt: all matrix products are LibTorch's, and there is no --gemm_tuning")
endif()

if(MEGALITH_GPU)
  set_source_files_properties(${gpu_kernels} PROPERTIES LANGUAGE ${MEGALITH_GPU})
  # A target of their own: the compilers' flags differ from those of the C++ files.
  add_library(megalith_ops_gpu OBJECT ${gpu_kernels})
  target_include_directories(megalith_ops_gpu PRIVATE "${CMAKE_SOURCE_DIR}/src")
  target_sources(megalith_ops PRIVATE $<TARGET_OBJECTS:megalith_ops_gpu>)
  # Profilers name the lines of a kernel; the code is the same.
  target_compile_options(megalith_ops_gpu PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-lineinfo>
                                                  $<$<COMPILE_LANGUAGE:HIP>:-gline-tables-only>)
  # A program of 34 MB instead of 92. Drivers before those of CUDA 12.4 could not load it; those of CUDA 13 all can.
  if(MEGALITH_GPU STREQUAL "CUDA" AND CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 13.0)
    target_compile_options(megalith_ops_gpu PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:--compress-mode=size>)
  endif()
  list(JOIN CMAKE_${MEGALITH_GPU}_ARCHITECTURES "," built_for)
  target_compile_definitions(megalith_device PRIVATE "MEGALITH_GPU_ARCHITECTURES=\"${built_for}\"")
  # The operators' tables name them (ops/operator.h).
  target_compile_definitions(megalith_ops PRIVATE MEGALITH_GPU_KERNELS)
endif()
