# Arrow's C++ library, which reads Parquet, Arrow and CSV files: the headers and libraries inside the pyarrow wheel of the
# Python that torch comes from.
#
# Input   MEGALITH_ARROW        ON, OFF or AUTO
# Output  MEGALITH_ARROW_DIR    the folder of pyarrow, or empty
#         MEGALITH_ARROW_TEXT   for the summary

set(MEGALITH_ARROW AUTO CACHE STRING "Read Parquet, Arrow and CSV files (needs the package pyarrow): ON, OFF or AUTO")
set(MEGALITH_ARROW_DIR "")
set(MEGALITH_ARROW_TEXT "off")
if(NOT MEGALITH_ARROW STREQUAL "OFF")
  # Beside torch first: an installed program looks there.
  get_filename_component(_site "${LibTorch_DIR}/.." ABSOLUTE)
  set(_places "${_site}/pyarrow")
  foreach(_python IN ITEMS ${PYTHON} "${CMAKE_SOURCE_DIR}/.venv/bin/python3" python3)
    execute_process(
      COMMAND "${_python}" -c
              "import importlib.util as u, os; s = u.find_spec('pyarrow'); print(os.path.dirname(s.origin) if s else '')"
      OUTPUT_VARIABLE _found OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE _code)
    if(_code EQUAL 0 AND _found)
      list(APPEND _places "${_found}")
    endif()
  endforeach()
  foreach(_place IN LISTS _places)
    file(GLOB _arrow "${_place}/libarrow.so.*")
    file(GLOB _parquet "${_place}/libparquet.so.*")
    if(EXISTS "${_place}/include/parquet/arrow/reader.h" AND _arrow AND _parquet)
      list(GET _arrow 0 _arrow)
      list(GET _parquet 0 _parquet)
      set(MEGALITH_ARROW_DIR "${_place}")
      set(MEGALITH_ARROW_TEXT "${_arrow}")
      break()
    endif()
  endforeach()
  if(NOT MEGALITH_ARROW_DIR)
    set(MEGALITH_ARROW_TEXT "off: no pyarrow with headers; pip install pyarrow beside torch to read Parquet and CSV")
    if(MEGALITH_ARROW STREQUAL "ON")
      message(FATAL_ERROR "Arrow: ${MEGALITH_ARROW_TEXT}")
    endif()
  endif()
endif()

if(MEGALITH_ARROW_DIR)
  add_library(megalith_arrow MODULE src/data/arrow_plugin.cc)
  set_target_properties(
    megalith_arrow
    PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}"
               BUILD_RPATH "${MEGALITH_ARROW_DIR}"
               # Beside itself, or in the Python environment that the program was installed into.
               INSTALL_RPATH "$ORIGIN/arrow:$ORIGIN/../../../pyarrow"
               CXX_VISIBILITY_PRESET default)
  target_include_directories(megalith_arrow PRIVATE "${CMAKE_SOURCE_DIR}/src")
  target_include_directories(megalith_arrow SYSTEM PRIVATE "${MEGALITH_ARROW_DIR}/include")
  target_link_libraries(megalith_arrow PRIVATE "${_arrow}" "${_parquet}")
  target_link_libraries(megalith_arrow PRIVATE megalith_warnings)
  target_compile_options(megalith_arrow PRIVATE -O2)
  install(TARGETS megalith_arrow LIBRARY DESTINATION lib/megalith COMPONENT arrow)
endif()
