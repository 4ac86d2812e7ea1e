# Writes OUTPUT, a C++ file with the text of every table in FOLDER; run by cmake -P when one of them has changed. A row
# with more cells than its table has columns, or a line that continues nothing, ends the build.

# In a list a semicolon would end an item, and a bracket hide one.
function(check_rows name text)
  string(REGEX REPLACE "[;[]" "," text "\n${text}")
  string(REPLACE "]" "," text "${text}")
  string(REGEX REPLACE "\n#[^\n]*" "" text "${text}")
  string(REGEX REPLACE "\n +" " " text "${text}")
  string(REGEX REPLACE "\n+" ";" rows "${text}")
  set(num_columns 0)
  foreach(row IN LISTS rows)
    string(REGEX MATCHALL " [|]" bars "${row}")
    list(LENGTH bars num_bars)
    if(row STREQUAL "")
      continue()
    elseif(num_columns EQUAL 0)
      set(num_columns ${num_bars})
    endif()
    if(num_bars GREATER num_columns OR row MATCHES "^ ")
      message(FATAL_ERROR "${name}.table: this row has more cells than columns, or no beginning:\n  ${row}")
    endif()
  endforeach()
endfunction()

file(GLOB tables "${FOLDER}/*.table")
set(files "")
foreach(table IN LISTS tables)
  get_filename_component(name "${table}" NAME_WE)
  file(READ "${table}" text)
  check_rows("${name}" "${text}")
  string(APPEND files "    {\"${name}\", R\"table(${text})table\"},\n")
endforeach()
file(WRITE "${OUTPUT}"
  "#include \"config/dialect.h\"\n\nnamespace megalith {\n\nstd::span<const DialectFile> dialect_files() {\n"
  "  static constexpr DialectFile kFiles[] = {\n${files}  };\n  return kFiles;\n}\n\n}  // namespace megalith\n")
