# A device of LibTorch's private kind whose memory is the host's (accelerator/), with the GPU's kernels under emulation, and
# what runs there: the program, and the tests of the operators a second time.
if(NOT LibTorch_FLAVOUR STREQUAL "CPU")
  message(STATUS "The pretend accelerator is left out: this torch is the ${LibTorch_FLAVOUR} build and has a GPU's device")
  return()
endif()

file(GLOB accelerator_sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/pretend/accelerator/*.cc")
add_library(pretend_accelerator OBJECT ${accelerator_sources})
target_include_directories(pretend_accelerator PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}")
target_link_libraries(pretend_accelerator PRIVATE megalith_device megalith::torch dep::fmt megalith_warnings)
target_precompile_headers(pretend_accelerator REUSE_FROM megalith_torch_pch)
set(pretend_objects $<TARGET_OBJECTS:pretend_accelerator>)

# A double of cuBLASLt, and the calls of it that the library has in builds for GPUs.
add_library(pretend_blas OBJECT "${CMAKE_SOURCE_DIR}/src/ops/gpu/blas.cc")
target_compile_definitions(pretend_blas PRIVATE MEGALITH_BLAS)
target_include_directories(pretend_blas PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}/pretend/blas/include")
target_link_libraries(pretend_blas PRIVATE megalith_device megalith::torch dep::fmt megalith_warnings)
target_precompile_headers(pretend_blas REUSE_FROM megalith_torch_pch)
add_library(pretend_cublaslt OBJECT "${CMAKE_CURRENT_SOURCE_DIR}/pretend/blas/cublaslt.cc")
target_include_directories(pretend_cublaslt PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}")
target_compile_options(pretend_cublaslt PRIVATE -O2)
target_link_libraries(pretend_cublaslt PRIVATE megalith_warnings)

# The other vendor's: both kinds of eight-bit numbers.
add_library(pretend_blas_hip OBJECT "${CMAKE_SOURCE_DIR}/src/ops/gpu/blas.cc")
target_compile_definitions(pretend_blas_hip PRIVATE MEGALITH_BLAS MEGALITH_BLAS_HIP)
target_include_directories(pretend_blas_hip PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}/pretend/blas/include_hip")
target_link_libraries(pretend_blas_hip PRIVATE megalith_device megalith::torch dep::fmt megalith_warnings)
target_precompile_headers(pretend_blas_hip REUSE_FROM megalith_torch_pch)
add_library(pretend_hipblaslt OBJECT "${CMAKE_CURRENT_SOURCE_DIR}/pretend/blas/hipblaslt.cc")
target_include_directories(pretend_hipblaslt PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}" "${CMAKE_CURRENT_SOURCE_DIR}/pretend/blas/include_hip")
target_link_libraries(pretend_hipblaslt PRIVATE megalith_warnings)

# The adapters of operators with a table for GPUs, compiled with it. On the link line they come before megalith_ops, whose
# adapters are then not taken.
if(TARGET test_gpu_kernels)
  get_target_property(gpu_adapters megalith_ops MEGALITH_GPU_ADAPTERS)
  add_library(megalith_gpu_adapters OBJECT ${gpu_adapters})
  target_compile_definitions(megalith_gpu_adapters PRIVATE MEGALITH_GPU_KERNELS)
  target_link_libraries(megalith_gpu_adapters PRIVATE megalith_device megalith::torch dep::fmt megalith_warnings)
  target_precompile_headers(megalith_gpu_adapters REUSE_FROM megalith_torch_pch)
  target_compile_definitions(pretend_accelerator PRIVATE MEGALITH_GPU_KERNELS)  # so that graphs keep their launches
  list(APPEND pretend_objects $<TARGET_OBJECTS:megalith_gpu_adapters> $<TARGET_OBJECTS:test_gpu_kernels_objects>
       $<TARGET_OBJECTS:gpu_emulation_plain>)
endif()

list(APPEND pretend_objects $<TARGET_OBJECTS:pretend_cublaslt>)
set(pretend_hip_objects ${pretend_objects} $<TARGET_OBJECTS:pretend_blas_hip> $<TARGET_OBJECTS:pretend_hipblaslt>)
list(APPEND pretend_objects $<TARGET_OBJECTS:pretend_blas>)

add_executable(megalith_pretend "${CMAKE_SOURCE_DIR}/src/cli/main.cc" "${CMAKE_SOURCE_DIR}/src/cli/commands.cc" ${pretend_objects})
target_link_libraries(megalith_pretend PRIVATE megalith_bench megalith_warnings)
# Its functions have names at run time, which say where the host waits, and by which blas.cc finds the double, as it finds
# the library that LibTorch has loaded. So have those of the test programs.
set_target_properties(megalith_pretend PROPERTIES ENABLE_EXPORTS ON)
megalith_python_entry(pretend.training pretend megalith_pretend pretend/training_test.py)
megalith_python_entry(pretend.host_states pretend megalith_pretend pretend/host_states_test.py)
megalith_python_entry(pretend.waits pretend megalith_pretend pretend/waits_test.py)
megalith_python_entry(pretend.graphs pretend megalith_pretend pretend/graphs_test.py)
# What will be run when a GPU is at hand (scripts/gpu/first_hour.sh).
megalith_python_entry(gpu.rehearsal gpu megalith_pretend pretend/rehearsal_test.py)
if(TARGET test_ops)
  set_property(TEST gpu.rehearsal APPEND PROPERTY ENVIRONMENT "MEGALITH_OPERATOR_TESTS=${CMAKE_BINARY_DIR}/bin/test_ops_pretend")
endif()

# The accelerator's own tests, and those of docs/gpu.md.
megalith_test(pretend LABEL unit TORCH NO_GPU ENVIRONMENT PRETEND_DEVICES=2 USES nn ops)
if(TARGET test_pretend)
  target_sources(test_pretend PRIVATE ${pretend_objects})
  set_target_properties(test_pretend PROPERTIES ENABLE_EXPORTS ON)
endif()

megalith_test(pretend_hip LABEL unit TORCH NO_GPU ENVIRONMENT PRETEND_DEVICES=2 USES nn ops)
if(TARGET test_pretend_hip)
  target_sources(test_pretend_hip PRIVATE ${pretend_hip_objects})
  set_target_properties(test_pretend_hip PROPERTIES ENABLE_EXPORTS ON)
endif()

# Every TEST_P of the operators has a second form there (support/on_device.h).
if(TARGET test_ops)
  add_executable(test_ops_pretend $<TARGET_OBJECTS:test_ops> ${pretend_objects})
  set_target_properties(test_ops_pretend PROPERTIES LINKER_LANGUAGE CXX ENABLE_EXPORTS ON)
  target_link_libraries(test_ops_pretend PRIVATE megalith_ops megalith_device dep::gtest)
  megalith_suites_of(ops_pretend unit.ops.pretend unit)
endif()

# Ranks as threads, each with a pretend device of its own.
megalith_test(layouts_pretend LABEL pretend TORCH NO_GPU ENVIRONMENT PRETEND_DEVICES=8 USES verify ops)
if(TARGET test_layouts_pretend)
  target_sources(test_layouts_pretend PRIVATE layouts/rows.cc ${pretend_objects})
  set_target_properties(test_layouts_pretend PROPERTIES ENABLE_EXPORTS ON)
endif()
