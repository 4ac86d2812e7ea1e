# Compiler cache, linker and warning flags: used when present, never required.
find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Precompiled headers are cached only when ccache may ignore their time stamps.
  set(CMAKE_CXX_COMPILER_LAUNCHER
      "${CMAKE_COMMAND}" -E env CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      "${CCACHE_PROGRAM}")
endif()

set(MEGALITH_LINKER "")
find_program(MOLD_PROGRAM mold)
if(MOLD_PROGRAM)
  # An older compiler does not know the name.
  include(CheckLinkerFlag)
  check_linker_flag(CXX -fuse-ld=mold MEGALITH_KNOWS_MOLD)
  if(MEGALITH_KNOWS_MOLD)
    add_link_options(-fuse-ld=mold)
    set(MEGALITH_LINKER "${MOLD_PROGRAM}")
  endif()
endif()

add_library(megalith_warnings INTERFACE)
target_compile_options(megalith_warnings INTERFACE -Wall -Wextra -Wno-unused-parameter -Wno-missing-field-initializers)
if(MEGALITH_WERROR)
  target_compile_options(megalith_warnings INTERFACE -Werror)
endif()

if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options(-fpch-preprocess)
endif()

# Most of a file's time goes into headers and into the library templates it instantiates: both are paid once a batch.
# A file still includes what it uses and keeps its local names unique in its folder; -DMEGALITH_UNITY=OFF builds them
# one by one.
if(MEGALITH_UNITY)
  set(CMAKE_UNITY_BUILD ON)
  set(CMAKE_UNITY_BUILD_BATCH_SIZE 14)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # A class of a .cc file that holds a type of its unnamed namespace: right, but no longer in the main file.
    target_compile_options(megalith_warnings INTERFACE -Wno-subobject-linkage)
  endif()
endif()

if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 12)
  message(WARNING "g++ ${CMAKE_CXX_COMPILER_VERSION} is older than those Megalith is tested with (12): "
                  "install g++-12 and set CXX=g++-12")
endif()

if(MEGALITH_SANITIZE)
  if(NOT MEGALITH_SANITIZE MATCHES "^(address|undefined|thread)$")
    message(FATAL_ERROR "MEGALITH_SANITIZE is '${MEGALITH_SANITIZE}'; use address, undefined or thread")
  endif()
  add_compile_options(-fsanitize=${MEGALITH_SANITIZE} -fno-omit-frame-pointer -g1)
  add_link_options(-fsanitize=${MEGALITH_SANITIZE})
endif()
