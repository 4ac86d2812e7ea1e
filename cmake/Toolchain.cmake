# Compiler cache, linker and warning flags: used when present, never required.
find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Precompiled headers are cached only when ccache may ignore their time stamps.
  set(CMAKE_CXX_COMPILER_LAUNCHER
      "${CMAKE_COMMAND}" -E env CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      "${CCACHE_PROGRAM}")
endif()

find_program(MOLD_PROGRAM mold)
if(MOLD_PROGRAM AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_link_options(-fuse-ld=mold)
endif()

add_library(megalith_warnings INTERFACE)
target_compile_options(megalith_warnings INTERFACE -Wall -Wextra -Wno-unused-parameter -Wno-missing-field-initializers)
if(MEGALITH_WERROR)
  target_compile_options(megalith_warnings INTERFACE -Werror)
endif()

if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options(-fpch-preprocess)
endif()

if(MEGALITH_SANITIZE)
  if(NOT MEGALITH_SANITIZE MATCHES "^(address|undefined|thread)$")
    message(FATAL_ERROR "MEGALITH_SANITIZE is '${MEGALITH_SANITIZE}'; use address, undefined or thread")
  endif()
  add_compile_options(-fsanitize=${MEGALITH_SANITIZE} -fno-omit-frame-pointer -g1)
  add_link_options(-fsanitize=${MEGALITH_SANITIZE})
endif()
