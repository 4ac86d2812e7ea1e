# The files of cpu/kernels/, compiled once for each instruction set; cpu/capability.h chooses at run time.
file(GLOB kernel_sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/ops/cpu/kernels/*.cc")

# megalith_cpu_kernels(<capability> <flags…>): the flags are those with which ATen builds its own kernels.
function(megalith_cpu_kernels capability)
  string(TOLOWER "megalith_ops_kernels_${capability}" target)
  add_library(${target} OBJECT ${kernel_sources})
  target_include_directories(${target} PRIVATE "${CMAKE_SOURCE_DIR}/src")
  target_link_libraries(${target} PRIVATE megalith::torch megalith_warnings)
  # -fopenmp comes with megalith::torch: without it at::parallel_for is serial.
  target_compile_options(${target} PRIVATE -O3 ${ARGN})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # g++ 12 warns inside its own AVX-512 intrinsics (GCC bug 105593).
    target_compile_options(${target} PRIVATE -Wno-maybe-uninitialized -Wno-uninitialized)
  endif()
  target_compile_definitions(${target} PRIVATE CPU_CAPABILITY=${capability} CPU_CAPABILITY_${capability})
  target_sources(megalith_ops_archive PRIVATE $<TARGET_OBJECTS:${target}>)
endfunction()

if(kernel_sources)
  megalith_cpu_kernels(DEFAULT)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    megalith_cpu_kernels(AVX2 -mavx2 -mfma -mf16c)
    megalith_cpu_kernels(AVX512 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx2 -mfma -mf16c)
  endif()
endif()
