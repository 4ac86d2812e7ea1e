# Writes OUTPUT, a C++ file with the text of every table in FOLDER; run by cmake -P when one of them has changed.
file(GLOB tables "${FOLDER}/*.table")
set(files "")
foreach(table IN LISTS tables)
  get_filename_component(name "${table}" NAME_WE)
  file(READ "${table}" text)
  string(APPEND files "    {\"${name}\", R\"table(${text})table\"},\n")
endforeach()
file(WRITE "${OUTPUT}"
  "#include \"config/dialect.h\"\n\nnamespace megalith {\n\nstd::span<const DialectFile> dialect_files() {\n"
  "  static constexpr DialectFile kFiles[] = {\n${files}  };\n  return kFiles;\n}\n\n}  // namespace megalith\n")
