# GPU kernels (*.cu, free of torch headers) and their registrations (*.cc), when cmake/Gpu.cmake found a compiler.
if(MEGALITH_GPU)
  file(GLOB gpu_kernels CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/ops/gpu/*.cu")
  file(GLOB gpu_registrations CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/ops/gpu/*.cc")
  set_source_files_properties(${gpu_kernels} PROPERTIES LANGUAGE ${MEGALITH_GPU})
  # A target of their own: the compilers' flags differ from those of the C++ files.
  add_library(megalith_ops_gpu OBJECT ${gpu_kernels})
  target_include_directories(megalith_ops_gpu PRIVATE "${CMAKE_SOURCE_DIR}/src")
  target_sources(megalith_ops_archive PRIVATE ${gpu_registrations} $<TARGET_OBJECTS:megalith_ops_gpu>)
endif()
